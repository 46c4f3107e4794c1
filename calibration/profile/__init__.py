"""Profiling of this machine.

The sub-packages choose the shapes to measure, time them, and keep a session that survives an interruption.
"""
