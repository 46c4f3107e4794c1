"""How far simulated runs were from measured runs, and the error that answers state."""
