"""The schema and options of deployment.yaml, and its resolution into a ResolvedDeployment."""
