"""The machine under test: device, peaks, hardware counters, energy, timing and contention."""
