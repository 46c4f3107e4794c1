"""One replica: its loop of scheduling, running and processing steps, its API server, event log and invariants."""
