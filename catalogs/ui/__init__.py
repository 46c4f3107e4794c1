"""What all four commands share with a person: exit codes, the terminal, words and units, progress, charts, HTML
pages."""
