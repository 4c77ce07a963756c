"""Reducers, one file each: encoding of gradients to send, and decoding of what arrived."""
