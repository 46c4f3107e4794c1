"""Files of other profilers, engines and load clients, read into rows and measured runs."""
