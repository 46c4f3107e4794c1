"""Real engines and real load clients: start them, load them, read what they measured."""
