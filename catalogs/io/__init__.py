"""File input and output: strict YAML into pydantic models, JSON blocks, and atomic writes."""
