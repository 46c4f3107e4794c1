"""The answer to a request: measured plans, or a refusal with the changes that would meet the objectives."""
