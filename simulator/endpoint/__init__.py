"""A served model of which only the address is known, measured and compared with the catalog."""
