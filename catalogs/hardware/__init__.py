"""Accelerators, nodes and clusters, the grammar of `--hw`, and the hardware of this machine."""
