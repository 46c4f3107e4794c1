"""One class for each engine's scheduling policy, one contract, one registry."""
