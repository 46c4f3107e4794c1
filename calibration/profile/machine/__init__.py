"""The machine under test: its device, hardware counters, energy, timing and contention."""
