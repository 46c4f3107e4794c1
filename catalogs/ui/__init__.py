"""The user interface that all commands share: exit codes, terminal output, units, progress, charts and HTML pages."""
