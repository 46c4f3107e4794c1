"""One module for each subcommand of `plan`."""
