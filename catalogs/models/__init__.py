"""What a model is: its sizes, layer types and number formats, read from Hugging Face or a catalog file."""
