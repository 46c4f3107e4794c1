"""Learned estimators compared with physics on the same held-out rows."""
