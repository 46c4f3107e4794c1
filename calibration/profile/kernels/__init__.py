"""The work that is timed for each operator family, one module per family."""
