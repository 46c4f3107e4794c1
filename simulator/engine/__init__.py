"""One replica: the loop schedule, run, process; its API server, its event log and its invariants."""
