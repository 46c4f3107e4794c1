"""Measure what operators cost on the machine at hand: shapes, timing, rows, manifest."""
