"""Traces of profilers (Nsight Systems, Nsight Compute, torch): what ran when, and operator rows with their shapes."""
