"""Plots of sweeps."""
