"""The comparison of a real engine with the simulator: the `calibrate verify` command."""
