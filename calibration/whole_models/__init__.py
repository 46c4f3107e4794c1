"""Whole Hugging Face models measured on this machine, and predictors of their latency and memory."""
