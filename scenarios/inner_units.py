"""Declares types of internal units (`Ps`, `Bytes`, `Bps`), so that a time cannot pass for a size.

They cost nothing at run time: a `Ps` is an `int`. Testbed agents import them without pydantic, which
`gradwire.scenarios.units` needs.
"""

from __future__ import annotations

from typing import NewType

Ps = NewType("Ps", int)
"""Picoseconds: times and durations of the simulator and the testbed."""
Ns = NewType("Ns", int)
"""Nanoseconds: the unit of the testbed's clocks."""
Bytes = NewType("Bytes", int)
"""Bytes: sizes of messages, packets, headers, buffers."""
Bps = NewType("Bps", int)
"""Bits per second: rates of links."""
PsPerByte = NewType("PsPerByte", int)
"""Picoseconds per byte << `gradwire.scenarios.wire.SPEED_SHIFT`: rates in the packet engine; larger is slower."""
