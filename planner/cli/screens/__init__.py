"""The terminal screens of the subcommands of `plan`."""
