"""Networks that a trainer can use: ideal, random loss, and simulated."""
