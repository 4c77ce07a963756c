"""Probing of the machine, choice of the switch backend, and the plan of every host and switch."""
