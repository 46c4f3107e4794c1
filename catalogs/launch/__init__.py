"""The command line that starts an engine for a ResolvedDeployment."""
