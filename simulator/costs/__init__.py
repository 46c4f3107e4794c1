"""BatchShape to seconds and joules: tables, the compiled step cost, and totals over a run."""
