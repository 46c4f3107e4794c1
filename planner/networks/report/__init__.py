"""The HTML pages of networks, their figures, and their tables as text and as files."""
