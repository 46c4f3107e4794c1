"""Cost and energy of a measured plan, as pure functions."""
