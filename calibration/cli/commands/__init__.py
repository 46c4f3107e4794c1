"""One module for each command of `calibrate`, and for each group of commands."""
