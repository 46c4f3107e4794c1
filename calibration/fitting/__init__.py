"""Fit cost models to rows: fits, cross-validation and validation of bundles."""
