"""Plans for a number of agents that work at once: sessions in a closed loop, KV tiers and routing."""
