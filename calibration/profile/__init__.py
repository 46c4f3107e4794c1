"""Profiling of this machine: which shapes to measure, how to time them, and the session that survives an
interruption."""
