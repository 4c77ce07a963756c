"""What one message does not lose of its bound, another may: worked by hand, and never more in all."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from gradwire.protocols.transports.dlcp.records import DlcpPeer, DlcpReceiver, is_affordable, spend

PAIR = 2000
FORTH, BACK, NEXT = 2, 3, 4


class Receiver:
    """Messages of one pair, side by side, and the words that they share."""

    def __init__(self) -> None:
        self.words = [0] * (PAIR + DlcpPeer.WORDS)
        self.shared = DlcpPeer(self.words, PAIR)
        self.count = 0

    def message(self, allowed: int, most: int = 1000, pool: int = FORTH) -> SimpleNamespace:
        receiver = DlcpReceiver(self.words, self.count * DlcpReceiver.WORDS)
        self.count += 1
        receiver.allowed_loss, receiver.max_loss, receiver.pool, receiver.pair = allowed, most, pool, self.shared
        return SimpleNamespace(
            may=lambda lost: is_affordable.py_func(receiver, lost), ends=lambda lost: spend.py_func(receiver, lost)
        )


def most_of(message: SimpleNamespace) -> int:
    return max(lost for lost in range(2000) if message.may(lost))


def test_later_messages_inherit_unused_loss_allowance():
    """Each message has an allowance of 100. The first message loses 30 and leaves 70; so the second may lose 170. It loses
    150 and leaves 20; the third loses its 100 and the 20; the fourth has its own allowance."""
    pair = Receiver()
    first, second, third, fourth = (pair.message(100) for _ in range(4))
    assert [most_of(each) for each in (first, second, third)] == [100] * 3
    first.ends(30)
    assert most_of(second) == most_of(third) == 170
    second.ends(150)
    assert most_of(third) == 120
    third.ends(120)
    assert most_of(fourth) == 100


def test_message_loss_is_capped_by_max_loss():
    pair = Receiver()
    pair.message(100).ends(0)
    assert most_of(pair.message(100, most=130)) == 130
    assert most_of(pair.message(0, most=0, pool=0)) == 0
    assert most_of(pair.message(50, most=50, pool=0)) == 50


def test_loss_pools_are_separate_per_direction_and_per_iteration():
    pair = Receiver()
    pair.message(100).ends(0)
    back = pair.message(10, pool=BACK)
    assert most_of(back) == 10
    back.ends(4)
    assert most_of(pair.message(100)) == 200 and most_of(pair.message(10, pool=BACK)) == 16
    following = pair.message(100, pool=NEXT)
    assert most_of(following) == 100
    following.ends(40)
    assert most_of(pair.message(100, pool=NEXT)) == 160
    assert most_of(pair.message(100)) == 100  # a straggler of the step before: what was left over there is forfeited


@pytest.mark.parametrize("seed", range(20))
def test_total_loss_never_exceeds_sum_of_allowances(seed):
    """Messages lose random shares of their allowance; iterations and directions come in random order."""
    rng = random.Random(seed)
    pair = Receiver()
    lost: dict[int, int] = {}
    parts: dict[int, int] = {}
    for _ in range(30):
        pool, allowed = rng.choice([FORTH, FORTH, BACK, NEXT]), rng.choice([0, 10, 100])
        message = pair.message(allowed, most=rng.choice([allowed, 150, 1000]), pool=pool)
        losing = rng.choice([0, rng.randrange(200), most_of(message)])
        if message.may(losing):
            message.ends(losing)
            lost[pool] = lost.get(pool, 0) + losing
            parts[pool] = parts.get(pool, 0) + allowed
        assert all(lost[each] <= parts[each] for each in lost)
        assert pair.shared.pools[1] >= 0 <= pair.shared.pools[3]
