"""Writes training runs and sweeps to TensorBoard and Weights & Biases, while they run or from their folders."""
