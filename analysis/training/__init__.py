"""Comparison of training runs: accuracy, seeds and lost values."""
