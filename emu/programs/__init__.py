"""Programs of the user's own across the testbed: who runs where, what they are told, what becomes of their packets."""
