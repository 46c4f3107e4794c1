"""Artefacts: a run as one folder that others can check, repeat and compare."""
