"""The shapes that a profiling session measures, and their order."""
