"""Packet captures in pcapng format."""
