"""Workloads: arrivals, lengths, sessions and traces, drawn into a RequestSet."""
