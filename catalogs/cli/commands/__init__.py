"""One module for each command of `catalog`."""
