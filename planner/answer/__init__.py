"""The answer as one schema: the winner measured, or a refusal that says what would meet the objective."""
