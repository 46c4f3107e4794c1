"""Collectives after NCCL's tuning model, and max-min fair sharing of links."""
