"""Importers: files of other profilers, engines and load clients become rows and measured runs."""
