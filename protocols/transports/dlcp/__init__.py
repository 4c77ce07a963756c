"""DLCP: bounded-loss transport with priorities, and its rate control."""
