"""Learned estimators, compared with the physics models on the same held-out rows."""
