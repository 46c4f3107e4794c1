"""The scheduling policies of vLLM: V0, V1, and the variants of V1 for features besides batching."""
