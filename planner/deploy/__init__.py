"""Files that start a plan somewhere: one module for each target, one for each engine's command line."""
