"""Networks that need no simulator: what they lose, by count and by place."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gradwire.scenarios.errors import ScenarioError  # noqa: E402
from gradwire.traces.trace import TensorInfo  # noqa: E402
from gradwire.training.exchange.encoded_tensors import Encoded  # noqa: E402
from gradwire.training.networks.builtin_networks import (  # noqa: E402
    Answer,
    EvenLoss,
    Ideal,
    Pushed,
    Random,
    RecordingNetwork,
    Replay,
)

INFOS = [TensorInfo(f"t{n}", (10_000,), 10_000, "float32", n) for n in range(4)]


def pushed(step: int = 0, workers: int = 2, payload: int = 40) -> Pushed:
    """1000 packets of 10 elements per tensor; magnitudes rise within each."""
    return Pushed(
        step, 0, payload, INFOS, [[Encoded((torch.arange(10_000).float(),)) for _ in INFOS] for _ in range(workers)]
    )


def lost(network, step: int = 0) -> np.ndarray:
    """(workers, tensors, packets), 1 for lost."""
    answer = network.carry(pushed(step))
    return np.array([[np.zeros(1000) if mask is None else (~mask).numpy() for mask in row] for row in answer.arrived])


def test_random_loss_matches_its_probability() -> None:
    """The loss of 8000 packets is within four standard deviations; it differs by step, worker and tensor."""
    gone = lost(Random(0.1))
    assert abs(gone.sum() - 800) < 4 * np.sqrt(8000 * 0.09)
    flat = gone.reshape(8, -1)
    assert len({row.tobytes() for row in flat}) == 8
    assert not np.array_equal(gone, lost(Random(0.1), step=1)) and not np.array_equal(gone, lost(Random(0.1, seed=1)))
    assert np.array_equal(gone, lost(Random(0.1))), "and the same for the same"


def test_loss_of_zero_drops_no_packet_and_loss_of_one_all() -> None:
    assert lost(Random(0.0)).sum() == 0 and lost(Ideal()).sum() == 0
    assert lost(Random(1.0)).sum() == 8000


def test_burst_loss_matches_mean_length_and_probability() -> None:
    gone = np.concatenate([lost(Random(0.1, burst=5, seed=s)).reshape(-1, 1000) for s in range(20)])
    starts = (np.diff(gone, axis=1, prepend=0) == 1).sum()
    assert gone.mean() == pytest.approx(0.1, rel=0.1)
    assert gone.sum() / starts == pytest.approx(5, rel=0.1)
    assert gone[:, 0].mean() == pytest.approx(0.1, abs=0.08), "it begins in its steady state"


def test_random_loss_is_limited_to_layers_and_magnitudes() -> None:
    """Layers 0 and 1 of four are in front; the first packets of each tensor are the small ones."""
    front = lost(Random(0.5, layers="front"))
    assert front[:, :2].sum() > 1800 and front[:, 2:].sum() == 0
    assert lost(Random(0.5, layers="back"))[:, :2].sum() == 0
    small = lost(Random(0.5, magnitudes="small"))
    assert small[:, :, 500:].sum() == 0 and small[:, :, :500].sum() > 1800
    assert lost(Random(0.5, magnitudes="large"))[:, :, :500].sum() == 0


def test_quota_loses_exact_share_and_last_loses_tail() -> None:
    assert (lost(Random(0.1, quota=True)).sum(axis=2) == 100).all()
    tail = lost(Random(0.2, last=True))
    assert tail[:, :, 800:].all() and tail[:, :, :800].sum() == 0
    halves = np.concatenate([lost(Random(0.0005, quota=True, seed=s)).sum(axis=2).ravel() for s in range(50)])
    assert set(halves) == {0, 1} and 0.35 < halves.mean() < 0.65, "half a packet: one in two"


def test_invalid_random_loss_settings_are_rejected() -> None:
    with pytest.raises(ScenarioError, match=r"Random\(loss\): is 1.5; expected a number from 0 to 1"):
        Random(1.5)
    with pytest.raises(ScenarioError, match=r"too high for bursts|Random\(burst\)"):
        Random(0.9, burst=3)


def test_packet_magnitudes_are_mean_absolute_values() -> None:
    """The last packet is shorter; its mean is over its own values."""
    encoded = Encoded((torch.tensor([1.0, -3.0, 5.0, 7.0, -9.0]),))
    found = Pushed(0, 0, 8, [TensorInfo("t", (5,), 5, "float32", 0)], [[encoded]]).magnitudes(0, 0)
    assert found.tolist() == [2, 6, 9]


def test_replay_equals_recorded_answers() -> None:
    recorded = RecordingNetwork(Random(0.3))
    answers = [recorded.carry(pushed(step)) for step in range(3)]
    replayed = Replay(recorded.answers)
    for step in range(3):
        again = replayed.carry(pushed(step))
        assert all(
            torch.equal(a, b)
            for x, y in zip(again.arrived, answers[step].arrived, strict=True)
            for a, b in zip(x, y, strict=True)
        )
    assert replayed.carry(pushed(3)) is replayed.carry(pushed(0)), "from the first again"


def test_replay_of_mismatched_answers_is_rejected() -> None:
    with pytest.raises(ValueError, match="no steps"):
        Replay([])
    one = Replay([[Answer([[None] * 4])]])
    with pytest.raises(ValueError, match="1 workers are recorded; expected 2"):
        one.carry(pushed())
    short = Replay([[Answer([[torch.ones(3, dtype=torch.bool)] * 4] * 2)]])
    with pytest.raises(ValueError, match="tensor t0: 3 packets are recorded; expected 1000"):
        short.carry(pushed())
    with pytest.raises(ValueError, match="has 1 recorded rounds"):
        Replay([[Answer([[None] * 4] * 2)]]).carry(Pushed(0, 1, 40, INFOS, pushed().encoded))


def test_even_loss_spreads_equal_packet_count_over_all_tensors() -> None:
    """The network loses the last fifth of worker 0's packets of two tensors. EvenLoss spreads them over all eight
    tensors of both workers, and to other packets in another step."""
    tail = Random(0.2, last=True, worker=0, layers="front")
    spread = lost(EvenLoss(tail))
    assert lost(tail).sum() == spread.sum() == 400 and lost(tail)[1].sum() == 0
    assert all(30 < part < 70 for part in spread.sum(axis=2).flatten()), "50 of each of eight tensors"
    assert not np.array_equal(spread, lost(EvenLoss(tail), step=1)) and not np.array_equal(
        spread, lost(EvenLoss(tail, seed=1))
    )
    assert lost(EvenLoss(Ideal())).sum() == 0 and EvenLoss(Ideal()).carry(pushed()).arrived[0][0] is None


def test_even_loss_preserves_lost_bytes() -> None:
    """Short packets at the ends of tensors count with their size. No more bytes are lost than before, and less than
    a packet fewer."""
    infos = [TensorInfo("short", (3,), 3, "float32", 0)] * 200 + [TensorInfo("long", (10_000,), 10_000, "float32", 1)]
    rows = [[Encoded((torch.ones(info.numel),)) for info in infos]]
    asked = Pushed(0, 0, 40, infos, rows)
    gone = {}
    for name, network in (("random", Random(0.3, layers="back")), ("spread", EvenLoss(Random(0.3, layers="back")))):
        masks = network.carry(asked).arrived[0]
        gone[name] = [
            0 if mask is None else int((~mask).sum()) * (12 if info.numel == 3 else 40)
            for mask, info in zip(masks, infos, strict=True)
        ]
    assert sum(gone["random"][:-1]) == 0 and sum(gone["spread"][:-1]) > 0
    assert 0 <= sum(gone["random"]) - sum(gone["spread"]) < 40


def test_even_loss_of_ring_covers_all_hops() -> None:
    from gradwire.training.exchange.ring_allreduce import RingLayout
    from tests.support.training_cases import pushed_round

    asked = pushed_round(RingLayout((16_000,), ((0,),), 8, 40))
    whole, spread = (
        network.carry(asked).hops.masks[0] for network in (Random(0.2, way="pull"), EvenLoss(Random(0.2, way="pull")))
    )
    assert whole.shape == spread.shape and (~whole).sum() == (~spread).sum()
    assert whole[:7].all() and abs(int((~spread[:7]).sum()) - int((~spread[7:]).sum())) < 0.2 * int((~spread).sum())


def test_even_loss_of_ring_preserves_lost_bytes() -> None:
    """Segments of 15 values are a packet of 40 bytes and one of 20. The network loses all 112 short ones. EvenLoss
    loses as many bytes, to less than a packet, in fewer packets, some of them long."""
    from gradwire.training.exchange.ring_allreduce import HopMasks, RingLayout
    from tests.support.training_cases import pushed_round

    class Tails(Ideal):
        def carry(self, pushed):
            mask = torch.ones(14, 8, 2, dtype=torch.bool)
            mask[..., 1] = False
            return Answer([[None]] * 8, hops=HopMasks(((0,),), [mask]))

    asked = pushed_round(RingLayout((120,), ((0,),), 8, 40))
    found = ~EvenLoss(Tails()).carry(asked).hops.masks[0]
    long, short = int(found[..., 0].sum()), int(found[..., 1].sum())
    assert long > 0 and short > 0 and 0 <= 112 * 20 - (40 * long + 20 * short) < 40
