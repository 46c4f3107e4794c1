"""Which candidates are legal, and closed-form bounds that discard safely."""
