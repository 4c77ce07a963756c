"""Schema of jobs: exchange, scheduler, loss bounds and training."""
