"""Measured rows: how they are stored, which operator each row is, and the check against physics."""
