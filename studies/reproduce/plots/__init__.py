"""Plots of reproduced claims."""
