"""One module for each deployment target, and the registry of targets."""
