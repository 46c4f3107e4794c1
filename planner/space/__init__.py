"""The legal candidates, and closed-form bounds that rule out candidates safely."""
