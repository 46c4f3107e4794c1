"""`plan mcp`: the planner as tools for assistants, by the Model Context Protocol."""
