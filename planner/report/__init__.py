"""The page of an answer: what to rent and why, from material gathered once, as figures, tables and files."""
