"""Statistics of a step's exchange: bytes, losses and times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class ExchangeStats:
    """Statistics of a step's exchange.

    nbytes : bytes of payload that each worker sent, all rounds.
    lost : share of its packets' content that did not arrive, by worker and tensor, of the round that lost most.
    time_ps : duration, including encoding and decoding if these count.
    encode_ps, decode_ps : their durations; see `gradwire.training.exchange.exchange.Exchange`.
    pulled : of what comes back from servers, by worker and tensor the elements that arrived, (numel,) bool, None if all
        did; empty if everything arrived.
    views : the workers' means if a ring gave them different ones, N lists of T tensors; else empty.
    pulled_bytes : payload that servers sent back to all workers (`gradwire.training.exchange.exchange.answer_bytes`); a
        ring's is all in `nbytes`.
    encode_ns, server_ns : measured time of encoding, all workers together, and of decoding and adding up
        (`gradwire.training.devices.Stopwatch`): the only part that is not reproducible.
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
