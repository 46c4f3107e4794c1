"""Jobs of networks in queues and batches: the same clock, routers and statistics as requests of language models."""
