"""Data sets that a capture trains on: pictures (`images`) and text (`text`), read from where the user has them."""
