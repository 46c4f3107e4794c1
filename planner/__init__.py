"""Searches deployments that meet latency objectives, and explains, checks and deploys the answer."""
