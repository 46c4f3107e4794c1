"""The Optuna study over candidates, its objectives and worker processes, and the Pareto search."""
