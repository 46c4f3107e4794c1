"""Real engines and load clients that run on this machine."""
