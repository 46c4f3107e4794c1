"""Prices, electricity and carbon: dated public tables."""
