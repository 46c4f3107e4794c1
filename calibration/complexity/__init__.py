"""Latency of requests against their complexity, which is their number of input and output tokens."""
