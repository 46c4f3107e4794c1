"""Operator tables other projects measured, turned into this project's rows."""
