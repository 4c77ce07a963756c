"""Memory of the engine: regions, records, and their allocation."""
