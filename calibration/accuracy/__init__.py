"""The error of simulated runs against measured runs, and the error that answers state."""
