"""Transports: how one message gets from its sender to its receiver. One file each."""
