"""What an answer of the API contains: pure functions from typed arguments to JSON."""
