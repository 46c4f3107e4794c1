"""The `plan` command, its subcommands and their terminal screens."""
