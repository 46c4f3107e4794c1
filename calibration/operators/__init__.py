"""The operators of a step: their fields, FLOPs, bytes and roofline times, and the cost of running one."""
