"""What a page shows of an answer for a network: the HTML file, the page of `plan serve`, figures and tables."""
