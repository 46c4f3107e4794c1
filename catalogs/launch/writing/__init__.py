"""The arguments that start each engine for a resolved deployment, one module for each engine."""
