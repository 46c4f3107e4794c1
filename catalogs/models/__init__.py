"""Model facts: sizes, layer types and number formats, read from Hugging Face configs or catalog files."""
