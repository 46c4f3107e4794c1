"""The command lines that start an engine for a ResolvedDeployment."""
