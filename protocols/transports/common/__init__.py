"""Code that transports share: window, loss recovery, scoreboard and delayed acknowledgements."""
