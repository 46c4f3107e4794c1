"""The optional sections of an answer, which extend it beyond its plans."""
