"""What is sent: recorded gradients of real training, and how they become tagged packets.

`traces.trace` is the format, `traces.messages` turns a trace into priorities and importance per packet;
neither needs torch. `traces.capture` records a trace from a PyTorch training loop and does.
"""
