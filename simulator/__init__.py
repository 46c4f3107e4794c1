"""A discrete-event simulator of serving engines: requests in, times, energy and explanations out."""
