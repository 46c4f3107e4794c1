"""The HTML page of an answer, its figures and tables."""
