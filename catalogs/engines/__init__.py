"""What a serving engine does by default, one profile for each engine and version."""
