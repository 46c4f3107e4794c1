"""Operator costs learned from measurements: profiling, fitting, readable bundles and their stated errors."""
