"""Statistics of a finished run, and why it took the time it took."""
