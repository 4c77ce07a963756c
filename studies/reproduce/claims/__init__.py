"""Published claims, one module per paper or topic."""
