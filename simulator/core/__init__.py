"""The nouns that all of the simulator shares: clock, request, batch, step log, outcomes."""
