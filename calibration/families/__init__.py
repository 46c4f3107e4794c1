"""One cost model for each operator family, and the registry of families."""
