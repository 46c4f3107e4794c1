"""The servers that start plans of networks: one module for each, and the registry."""
