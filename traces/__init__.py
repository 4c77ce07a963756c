"""What is sent: the trace format, capture from PyTorch, and the step from tensors to tagged messages."""
