"""Reducers, one file each: what is sent instead of a gradient, and what is made of what arrives of it."""
