"""A real engine compared with the simulator: the `calibrate verify` command."""
