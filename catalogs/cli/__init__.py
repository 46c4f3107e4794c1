"""The `catalog` command."""
