"""The division of device memory into weights, activations and KV blocks."""
