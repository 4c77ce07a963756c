"""Output folders: created completely or not at all, locked, and resumed."""
