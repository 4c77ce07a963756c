"""The units that everything is counted in inside, as types: a time cannot be handed over where a size is wanted.

They cost nothing where they are read: a `Ps` is an `int`. Agents of the testbed import them without pydantic, which
`gradwire.scenarios.units` needs.
"""

from __future__ import annotations

from typing import NewType

Ps = NewType("Ps", int)
"""Picoseconds: every time and duration of a simulation, and of what both worlds carry out."""
Ns = NewType("Ns", int)
"""Nanoseconds: what the clocks of the testbed count."""
Bytes = NewType("Bytes", int)
"""Bytes: sizes of messages, packets, headers, buffers."""
Bps = NewType("Bps", int)
"""Bits per second: rates of links."""
PsPerByte = NewType("PsPerByte", int)
"""Picoseconds per byte << `gradwire.scenarios.wire.SPEED_SHIFT`: rates as the packet engine has them; the larger, the
slower."""
