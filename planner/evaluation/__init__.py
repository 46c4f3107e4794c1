"""A candidate under a load: simulated, observed in its steady state, with error bars."""
