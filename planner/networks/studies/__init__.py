"""Questions to a finished answer for a network: what-if, explain, compare, and the analysis of one job."""
