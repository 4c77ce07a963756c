"""TCP-like transports: NewReno, CUBIC, DCTCP, PIAS and BBR."""
