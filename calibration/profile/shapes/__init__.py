"""Which shapes a profiling session measures, and in which order."""
