"""Time shares of processes with the same real-time priority, which otherwise run until they wait, or for 100 ms."""

SHARE_NS = 100_000
"""Time after which an agent or the switch yields to processes of its priority (our choice)."""
AT_ONCE_NS = 3_000
"""Waits shorter than this count as no wait: an event was ready. Our choice; sleeping and waking up takes longer."""
