"""An endpoint of which nothing is known but its address, measured and compared with the catalog."""
