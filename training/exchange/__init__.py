"""Exchange of gradients between workers over a network that loses packets."""
