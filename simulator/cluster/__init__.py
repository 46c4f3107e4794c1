"""Many replicas behind routers, with controllers, clients and KV transfers; `simulate()` and its Run."""
