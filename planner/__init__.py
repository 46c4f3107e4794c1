"""Chooses a deployment and explains it. Imports everything below."""
