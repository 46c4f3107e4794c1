"""The subcommands of `plan`: one typer function each; what they need is imported inside."""
