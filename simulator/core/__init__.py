"""Data types shared by the whole simulator: the clock, requests, batches, step logs and request outcomes."""
