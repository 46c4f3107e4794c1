"""Facts as data, with typed loaders: models, hardware, engines, workloads, prices. Imports nothing of ours."""
