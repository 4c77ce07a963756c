"""Turns of processes of one real-time priority, which run until they wait for something, or for a tenth of a second."""

SHARE_NS = 100_000
"""An agent, or the switch, works so long at once where others of its priority want to (our choice)."""
AT_ONCE_NS = 3_000
"""Who waited for less has not waited: something was ready. Our choice; going to sleep and waking up takes longer."""
