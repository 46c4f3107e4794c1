"""The `catalog` command and its subcommands."""
