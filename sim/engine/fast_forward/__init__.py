"""Fast-forward of iterations that repeat exactly or on average."""
