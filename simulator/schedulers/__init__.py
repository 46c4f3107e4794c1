"""The scheduling policies of the engines: one class for each, one contract, one registry."""
