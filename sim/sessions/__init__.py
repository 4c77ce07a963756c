"""Long-lived simulated networks on which jobs are played piece by piece."""
