"""`ExchangeStats` holds bytes, losses and times of a step's exchange; `answer_bytes` computes the bytes of a server's
answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradwire.scenarios.lazily import Tensor
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.exchange.ring_allreduce import VALUE

Encodings = list[list["Encoded"]]
"""By worker and tensor."""
Times = list[list[int]]
"""Time of each encoding, in picoseconds."""


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
    pulled_bytes : payload that servers sent back to all workers (`answer_bytes`); a
        ring's is all in `nbytes`.
    retransmitted : retransmissions of data packets, of all rounds; None if unknown.
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
    retransmitted: int | None = None

    def add_retransmitted(self, packets: int | None) -> None:
        """Count the retransmissions of a round, if known."""
        if packets is not None:
            self.retransmitted = packets + (self.retransmitted or 0)


def answer_bytes(numel: int, encoded: Encoded, filled: int | None = None) -> int:
    """Return the bytes with which a server answers one worker: a tensor's mean in the shortest lossless form. That is
    float32, or 16 bits if that was pushed; if workers send positions, the nonzero elements with theirs, if that is
    shorter; if all know the positions, the elements alone. Our choice: papers on reducers count what is pushed.

    numel : elements of the mean. encoded : the first worker's push of it. filled : number of its nonzero elements, if
        workers send positions.
    """
    if encoded.known:
        return VALUE * encoded.units
    half = len(encoded.fields) == 1 and encoded.fields[0].is_floating_point() and encoded.fields[0].element_size() == 2
    full_bytes = numel * (2 if half else VALUE)
    return full_bytes if filled is None else shorter_bytes(full_bytes, filled)


def shorter_bytes(whole: int, elements: int) -> int:
    """Return the bytes of a mean: its nonzero elements with positions, or all of it, whichever is shorter."""
    return min(whole, 2 * VALUE * elements)
