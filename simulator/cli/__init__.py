"""The `simulate` command."""
