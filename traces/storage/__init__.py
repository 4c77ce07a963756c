"""Storage of traces: table schemas, reader, writer and validation."""
