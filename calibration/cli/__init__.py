"""The `calibrate` command and its subcommands."""
