"""Routing policies: one class for each, with a common interface and a registry."""
