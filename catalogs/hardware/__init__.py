"""What an accelerator, a node and a cluster are, the `--hw` grammar, and this machine."""
