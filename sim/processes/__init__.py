"""SimPy processes that run against the packet engine."""
