"""LTP: a loss-tolerant transport that closes messages early."""
