"""The simulation of many replicas behind routers, with controllers, clients and KV transfers; `simulate()` and Run."""
