"""Timelines of a run: Chrome trace events and tensor times."""
