"""Files in and out: strict YAML into pydantic models, and atomic writes."""
