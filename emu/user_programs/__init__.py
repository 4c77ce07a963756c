"""User programs across the testbed: ranks, their environment, marking rules and results."""
