"""Device memory to KV blocks."""
