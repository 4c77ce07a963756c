"""Cross-table validation: mistakes that no single table shows."""
