"""Gradient traces of real training jobs, and the tagging of their packets.

`gradwire.traces.trace` is the format, `gradwire.traces.tagging` turns a trace into priority and importance per packet;
neither needs torch. `gradwire.traces.capture.session` records a trace from a PyTorch training loop.
"""
