"""Plans of networks that are not language models: which hardware serves their jobs within a limit, and how."""
