"""One class for each routing policy, one contract, one registry."""
