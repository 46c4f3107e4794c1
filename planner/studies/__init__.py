"""Questions to a finished answer: what-if, sensitivity, growth, spares, explain, analyze, compare."""
