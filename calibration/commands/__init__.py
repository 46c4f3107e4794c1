"""The `calibrate` command."""
