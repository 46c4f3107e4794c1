"""What a session measures and keeps: shapes, rows on disk, the manifest of the environment."""
