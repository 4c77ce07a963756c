"""Logs of the collectives of a running job, as PyTorch, NCCL and profilers write them."""
