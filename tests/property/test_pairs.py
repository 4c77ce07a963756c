"""Messages of a pair in several classes: engine and oracle agree, and the best class sends."""

from __future__ import annotations

import random

import pytest
from transport_bench import GBPS, US, star_of

from gradwire.scenarios.schema.network.network import Switch
from gradwire.testing import transport
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle


@pytest.mark.parametrize("seed", range(12))
def test_engine_and_oracle_agree_on_many_messages_of_few_pairs(seed):
    """Messages are paced far below the line rate, so groups wait for their pair most of the time. Buffers are
    shallow."""
    rng = random.Random(seed)
    hosts, classes = rng.choice([2, 3, 5]), rng.choice([(0,), (1, 6), tuple(range(8))])
    table = transport(
        "dlcp", payload="1000B", rate_control=rng.choice(["receiver", "dctcp", "delay"]),
        stop_policy=rng.choice(["early", "eager", "on_probe"]), floor=rng.choice([1, 8, 64]), t_low="1us", t_high="4us",
        probe_timeout="50us",
    )  # fmt: skip
    letters = [
        MessageSpec(
            rng.choice([0, 0, US, rng.randrange(40 * US)]), rng.randrange(1, hosts), 0, rng.randrange(1, 60_000),
            priority=rng.choice(classes), important=rng.choice([True, False]),
            bound=0.3, share=rng.choice([0.0, 0.05, 0.1]), pool=rng.choice([0, 2, 2, 3, 4]), turn=rng.randrange(100),
        )
        for _ in range(40)
    ]  # fmt: skip
    switch = Switch.model_validate(
        {"buffer": "40KB", "ecn_threshold": rng.choice(["5KB", "20KB"]), "selective_drop": True}
    )
    case = Case(star_of(hosts, 10 * GBPS), [table], letters, switch, seed=seed)
    difference = first_difference(run_engine(case), run_oracle(case))
    assert not difference, difference


def test_best_class_of_a_pair_sends_before_older_messages():
    """Two senders share the receiver's link, so that each is paced. The older message has class 7."""
    table = transport("dlcp", payload="1000B", rate_control="receiver")
    letters = [MessageSpec(0, src, 0, 300_000, priority=7) for src in (1, 2)]
    letters += [MessageSpec(50 * US, src, 0, 20_000, priority=1) for src in (1, 2)]
    case = Case(star_of(3, 10 * GBPS), [table], letters, Switch(), seed=1)
    engine = run_engine(case)
    assert not first_difference(engine, run_oracle(case))
    ends = {arrival.message: arrival.time for arrival in engine.arrivals}
    # 40 packets of both at 10 Gbps take 34 us
    assert max(ends[2], ends[3]) < (50 + 60) * US
