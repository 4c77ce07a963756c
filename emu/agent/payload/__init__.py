"""Payload bytes that agents send: real gradients or values drawn to a trace's magnitudes."""
