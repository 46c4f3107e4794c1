"""Predictions compared with a measured run or a live server."""
