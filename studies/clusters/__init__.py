"""Measured clusters beside the model of bus bandwidth: fitted constants, and errors on clusters that are left out.

measurements -> Sweeps -> fit by fabric class -> constants of presets
                      \\-> leave one cluster, or one fabric, out -> errors -> page
"""
