"""Traces of well-known models, computed from their shapes and a GPU's roofline: no recording is needed."""
