"""One module for each terminal screen."""
