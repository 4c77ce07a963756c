"""Computes the most messages that may be loaded at once, by the engine's words and this machine's memory. Nothing here
imports NumPy, so that tables can use it."""

from __future__ import annotations

from gradwire.jit.limits import LOADED_MESSAGE_BYTES, MAX_LOADED_MESSAGES
from gradwire.traces.storage.memory_limits import installed_bytes


def max_loaded_messages() -> int:
    """Return the maximum number of messages loaded at once, limited by the engine's words and this machine's memory."""
    return min(MAX_LOADED_MESSAGES, installed_bytes() // LOADED_MESSAGE_BYTES)
