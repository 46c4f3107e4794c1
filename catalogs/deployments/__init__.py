"""deployment.yaml: its schema, its options, and its resolution into a ResolvedDeployment."""
