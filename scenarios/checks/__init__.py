"""What no single table can know of: mistakes that show when several are seen together."""
