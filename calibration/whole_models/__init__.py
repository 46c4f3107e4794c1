"""Whole Hugging Face models with random weights: measured, tabulated and predicted."""
