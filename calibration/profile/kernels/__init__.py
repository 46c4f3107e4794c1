"""One module for each operator family: the work that is timed."""
