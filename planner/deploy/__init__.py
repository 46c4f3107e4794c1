"""The files that start a plan."""
