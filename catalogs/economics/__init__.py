"""Prices, electricity and carbon intensity from dated public tables."""
