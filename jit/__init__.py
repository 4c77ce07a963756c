"""Compilation of Python functions to machine code: record layouts, engine cache and counter-based random numbers."""
