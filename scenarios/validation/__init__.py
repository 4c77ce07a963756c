"""Cross-table validation: mistakes that no single table shows."""

HOST_KEYS = ("topology", "host.gpus")
"""Keys that determine the hosts, their number and their names: `concerns` of a mistake about hosts."""
