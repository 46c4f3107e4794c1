"""Data types shared by the whole simulator: the clock, requests, batches, step logs and request outcomes."""

from catalogs.ui.installation import is_compiled

is_compiled()  # raises InputError if a compiled module differs from its source, so no stale module ever runs
