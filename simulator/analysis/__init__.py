"""Statistics of a finished run, the phases of its requests, and the resource that limited it."""
