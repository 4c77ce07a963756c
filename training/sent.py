"""What a step's exchange came to: bytes, losses and times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Sent:
    """What a step's exchange came to.

    nbytes : bytes of payload that each worker sent, all rounds.
    lost : share of its packets' content that did not arrive, for each worker and tensor, of the round that lost most.
    time_ps : how long the network took, encoding and decoding included where these count.
    encode_ps, decode_ps : how long these took; see `gradwire.training.exchange.Exchange`.
    pulled : of what comes back from servers, by worker and tensor which elements arrived, (numel,) bool, None where all
        did; nothing where all of it did.
    views : the means that the workers have after a ring that gave them different ones, N lists of T tensors; else
        nothing.
    pulled_bytes : payload that servers sent back to all workers (`gradwire.training.exchange.answer_bytes`); a ring's
        is all in `nbytes`.
    encode_ns, server_ns : time of encoding, all workers together, and of decoding and adding up, as measured here
        (`gradwire.training.devices.Stopwatch`): the only thing that does not repeat.
    """

    nbytes: list[int]
    lost: list[list[float]]
    time_ps: int = 0
    pulled: list[list[Tensor | None]] = field(default_factory=list)
    views: list[list[Tensor]] = field(default_factory=list)
    encode_ps: int = 0
    decode_ps: int = 0
    pulled_bytes: int = 0
    encode_ns: int = 0
    server_ns: int = 0
