"""The reader of start commands: shell lines, scripts and manifests become deployments, with a note for every flag."""
