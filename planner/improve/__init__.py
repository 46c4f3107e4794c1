"""What to change in a running deployment, and what each change brings: `plan improve`."""
