"""Graphs of Chakra files: reading, repair, and replay for all ranks."""
