"""Per-worker gradients from one backward pass over the batches of all workers."""
