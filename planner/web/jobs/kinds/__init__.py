"""The kinds of jobs, one module for each."""
