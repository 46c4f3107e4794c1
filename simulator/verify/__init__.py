"""Simulated against measured: a real engine, a real client, the same requests."""
