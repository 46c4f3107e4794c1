"""The operators of a step, their FLOPs, bytes and roofline times, and what a cost is."""
