"""Addresses of the API: one router for each part."""
