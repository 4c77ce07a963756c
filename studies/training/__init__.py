"""Training runs over a network: run, cost estimate, seeds and step-time model."""
