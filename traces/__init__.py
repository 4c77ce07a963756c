"""What is sent: recorded gradients of real training, and how they become tagged packets.

`gradwire.traces.trace` is the format, `gradwire.traces.messages` turns a trace into priorities and importance per
packet; neither needs torch. `gradwire.traces.capture.session` records a trace from a PyTorch training loop and does.
"""
