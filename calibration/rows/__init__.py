"""Measured rows: their storage, the operator of each row, and the check against hardware peaks."""
