"""One class for each engine's rule that forms batches of jobs, one contract, one registry."""
