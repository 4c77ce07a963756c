"""Models of a scenario file, one module per table; `scenario` combines them."""
