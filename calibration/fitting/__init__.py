"""Rows to cost models: fits, cross-validation and error tables."""
