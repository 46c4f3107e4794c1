"""The operators that one engine step runs on one rank, by layer type."""
