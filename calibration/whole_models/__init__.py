"""Measurement of whole Hugging Face models on this machine, and predictors of their latency and memory."""
