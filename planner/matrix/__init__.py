"""A matrix of models, engines, hardware, workloads and batches: every cell simulated or measured, one row each."""
