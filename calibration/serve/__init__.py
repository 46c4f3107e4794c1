"""Real engines and load clients on this machine."""
