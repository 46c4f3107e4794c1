"""Facts as data, with typed loaders: models, hardware, engines, workloads, deployments, prices."""
