"""Metrics, tables and plots computed from Results.

This package reads Results and imports neither `sim` nor `emu`: only its content distinguishes an emulated Result.
"""
