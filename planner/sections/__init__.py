"""What an answer can hold beside its plan, one file for each section."""
