"""Collective primitives: all-gather, all-to-all, broadcast and reduce-scatter."""
