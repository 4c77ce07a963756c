"""What no single table can know of: mistakes that show when several are seen together."""

PLACES = ("topology", "host.gpus")
"""What hosts, their number and their names come from: `concerns` of a mistake about them."""
