"""Networks that are not language models: stages of operators whose sizes are exact polynomials."""
