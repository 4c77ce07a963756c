"""What the simulator is told of encoded gradients: how large what each packet stands for is, how long answers are, and what
must not be lost."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gradwire.result_store.table_schema import KINDS  # noqa: E402
from gradwire.sim.sessions.session import Session  # noqa: E402
from gradwire.traces.trace import TensorInfo  # noqa: E402
from gradwire.training.exchange.encoded_tensors import Encoded  # noqa: E402
from gradwire.training.exchange.exchange import Exchange  # noqa: E402
from gradwire.training.networks.builtin_networks import (  # noqa: E402
    Answer,
    EvenLoss,
    Ideal,
    Memoryless,
    Pushed,
    Random,
    RecordingNetwork,
)
from gradwire.training.networks.simulated import Simulated  # noqa: E402
from gradwire.training.parameter_server.mipd_trainer import MipdTrainer  # noqa: E402
from gradwire.training.parameter_server.selections import KEYS  # noqa: E402
from gradwire.training.reducers.dgc import DGC  # noqa: E402
from gradwire.training.reducers.feedback import ErrorFeedback  # noqa: E402
from gradwire.training.reducers.fp16 import Half  # noqa: E402
from gradwire.training.reducers.none import Dense  # noqa: E402
from gradwire.training.reducers.powersgd import PowerSGD  # noqa: E402
from gradwire.training.reducers.qsgd import QSGD  # noqa: E402
from gradwire.training.reducers.randomk import RandomK  # noqa: E402
from gradwire.training.reducers.signsgd import SignSGD  # noqa: E402
from gradwire.training.reducers.state import State  # noqa: E402
from gradwire.training.reducers.terngrad import TernGrad  # noqa: E402
from gradwire.training.reducers.topk import TopK  # noqa: E402
from gradwire.training.systems.mipd import MIPD  # noqa: E402
from gradwire.training.systems.slimdp import SlimDP  # noqa: E402
from gradwire.training.trainer import Recipe, Trainer  # noqa: E402
from tests.support.simulated_cases import made_trace, scenario  # noqa: E402
from tests.support.training_cases import plain  # noqa: E402
from tests.unit.training.test_asynchronous import DATA  # noqa: E402

PAYLOAD = 128
EVERY = [
    Dense(), Half(), TopK(ratio=0.3), RandomK(ratio=0.3), DGC(ratio=0.3), TernGrad(), TernGrad(clip=0.0), SignSGD(), SignSGD(scale="none"),
    ErrorFeedback(reducer=SignSGD()), ErrorFeedback(reducer=TopK(ratio=0.1)),
]  # fmt: skip


def one(numel: int) -> TensorInfo:
    return TensorInfo("t", (numel,), numel, "float32", 0)


def falling(numel: int) -> torch.Tensor:
    """Negative for the most part, and the smaller the later."""
    draws = torch.Generator().manual_seed(4)
    return -torch.linspace(1, 0.01, numel) * (0.5 + torch.rand(numel, generator=draws))


class Heard(Memoryless):
    """Keeps what is pushed."""

    def carry(self, pushed: Pushed) -> Answer:
        self.pushed = pushed
        return Ideal().carry(pushed)


@pytest.mark.parametrize("numel", [4000, 4001])
@pytest.mark.parametrize("reducer", EVERY, ids=lambda each: f"{type(each).__name__}-{each.kind}")
def test_packet_magnitudes_equal_mean_of_decoded_values(reducer, numel: int) -> None:
    """A packet decoded alone gives the sum, divided by the number of elements that it covers."""
    heard, info = Heard(), one(numel)
    Exchange(reducer, [info], 2, payload=PAYLOAD).step([[falling(numel)], [falling(numel)]], 0, heard)
    encoded = heard.pushed.encoded[0][0]
    step, packets = encoded.units_per_packet(PAYLOAD), encoded.packets(PAYLOAD)
    elements = reducer.elements(encoded) if reducer.places == "fixed" and not encoded.known else 1
    found = heard.pushed.magnitudes(0, 0)
    assert len(found) == packets > 2
    for packet in range(packets):
        mask = torch.zeros(packets, dtype=torch.bool)
        mask[packet] = True
        decoded = reducer.decode(encoded, info, encoded.arrived(mask, PAYLOAD)).abs()
        ends = min((packet + 1) * step, encoded.units) - packet * step
        about = min(ends * elements, numel - packet * step * elements) if elements > 1 else ends
        rough = 1 / ends if packet + 1 == packets else 2e-3  # a last unit of fewer elements counts like the others
        assert float(found[packet]) == pytest.approx(float(decoded.sum()) / about, rel=rough, abs=1e-7)


def test_qsgd_magnitudes_rank_buckets_by_mean() -> None:
    """QSGD's magnitudes are norms; buckets of equal length are in the order of their mean magnitudes."""
    encoded = QSGD(bucket=100).compress(falling(4000), one(4000), State(1, 0, 0))
    means = QSGD(bucket=100).decode(encoded, one(4000)).abs().view(-1, 100).mean(dim=1)
    found = QSGD(bucket=100).magnitudes(encoded, one(4000))
    assert float(np.corrcoef(found.argsort().argsort(), means.argsort().argsort())[0, 1]) > 0.98


def test_mipd_code_magnitudes_correlate_with_values() -> None:
    heard = Heard()
    trainer = MipdTrainer(plain(), DATA, Recipe(workers=2, batch=4, steps=4, rate=0.05), MIPD(bits=4), heard)
    for _ in range(2):
        trainer.step()
        for message, encoded in enumerate(heard.pushed.encoded[0]):
            found = heard.pushed.magnitudes(0, message)
            assert len(found) == encoded.packets(heard.pushed.payload) and (found >= 0).all()
    coded = MipdTrainer(plain(), DATA, Recipe(workers=2, batch=4, steps=4, rate=0.05), MIPD(bits=0), exact := Heard())
    coded.step()
    one_by_one = MipdTrainer(
        plain(), DATA, Recipe(workers=2, batch=4, steps=4, rate=0.05), MIPD(bits=8), codes := Heard()
    )
    one_by_one.step()
    for message in range(0, len(exact.pushed.infos), 2):
        mine, theirs = codes.pushed.unit_magnitudes(0, message), exact.pushed.unit_magnitudes(0, message)
        if len(theirs) >= 64:
            together = torch.nn.functional.pad(theirs, (0, -len(theirs) % 8)).view(-1, 8).mean(dim=1)[:-1]
            assert float(np.corrcoef(mine[:-1], together)[0, 1]) > 0.9


def lost_and_kept(reducer) -> tuple[float, float]:
    """Mean magnitude of what DLCP gives up of the gradients that are pushed, and of what arrives, over a few steps."""
    network = RecordingNetwork(Simulated(Session(scenario(transport={"kind": "dlcp", "payload": "512B"}))))
    numel, info = 120_000, one(120_000)
    exchange, sums = Exchange(reducer, [info], 4, payload=512), np.zeros((2, 2))
    for step in range(4):
        draws = torch.Generator().manual_seed(step)
        values = -torch.rand(numel // 1000, generator=draws).pow(3).repeat_interleave(1000)
        sent = values.abs()
        exchange.step([[values]] * 4, step, network)
        encoded = reducer.compress(values, info, State(1, 0, 0))
        for (mask,) in network.answers[step][0].arrived:
            if mask is not None:
                units = encoded.arrived(mask, 512).repeat_interleave(reducer.elements(encoded))[:numel]
                sums += [[float(sent[~units].sum()), int((~units).sum())], [float(sent[units].sum()), int(units.sum())]]
    assert sums[0, 1] > 1000, "something was lost"
    return sums[0, 0] / sums[0, 1], sums[1, 0] / sums[1, 1]


@pytest.mark.parametrize("reducer", [Dense(), TernGrad(clip=0.0)], ids=["dense", "terngrad"])
def test_dlcp_drops_small_gradients_of_every_encoding(reducer) -> None:
    lost, kept = lost_and_kept(reducer)
    assert lost < 0.7 * kept


def test_shorter_messages_have_correct_magnitudes() -> None:
    """One worker sends less of the first of two tensors; the second tensor's magnitudes stay in place."""
    infos = [one(5000), one(5000)]
    long, short, second = torch.full((4096,), 8.0), torch.full((1000,), 8.0), torch.full((4096,), 0.5)
    seen = []

    class Plays:
        takes_contents = False
        scenario = scenario()

        def step(self, trace, back=1.0):
            seen.append(trace)
            return Session(self.scenario).step(trace)

    encoded = [[Encoded((first,)), Encoded((second,))] for first in (long, short, long, long)]
    Simulated(Plays()).carry(Pushed(0, 0, 4096, infos, encoded))
    (trace,) = seen
    assert [trace.magnitudes(worker, 1)[0].tolist() for worker in range(4)] == [[0.5] * 16] * 4
    assert trace.magnitudes(1, 0)[0].tolist() == [8.0] * 3 + [8.0 * 232 / 256] + [0.0] * 12


@pytest.mark.parametrize(
    "reducer",
    [*EVERY[:9], QSGD(), PowerSGD(rank=1), SignSGD(scale="none", vote=True)],
    ids=lambda each: f"{type(each).__name__}-{each.kind}",
)
def test_simulated_pull_bytes_equal_counted_answer_bytes(reducer) -> None:
    """Nothing is lost, and the simulator rounds up to whole values of 4 bytes."""
    played = []

    class Plays:
        takes_contents = False

        def __init__(self) -> None:
            self.session = Session(scenario("dctcp", job={"push_bound": 0.0, "tagging": {"layer_priority": False}}))
            self.scenario = self.session.scenario

        def step(self, trace, back=1.0):
            played.append(self.session.step(trace, back).messages)
            return self.session.step(trace, back)

    infos = [TensorInfo("a", (60, 70), 4200, "float32", 0), TensorInfo("b", (33,), 33, "float32", 1)]
    draws = torch.Generator().manual_seed(2)
    gradients = [[torch.randn(info.shape, generator=draws) for info in infos] for _ in range(4)]
    _, sent = Exchange(reducer, infos, 4).step(gradients, 0, Simulated(Plays()))
    pulled = [
        int(n) for rows in played for n, kind in zip(rows.nbytes, rows.kind, strict=True) if KINDS[kind] == "pull"
    ]
    assert len(played) == reducer.rounds
    assert sent.pulled_bytes <= sum(pulled) <= sent.pulled_bytes + 3 * len(pulled)


def test_answer_size_affects_step_time() -> None:
    """Signs come back as float32: their step takes between half of and all of the dense time."""
    times = {}
    for reducer in (Dense(), SignSGD()):
        wide = {"queues": 8, "buffer": "64MiB", "ecn_threshold": "16KiB"}
        asked = scenario("dctcp", job={"push_bound": 0.0, "tagging": {"layer_priority": False}}, switch=wide)
        network = Simulated(Session(asked))
        _, sent = Exchange(reducer, [one(400_000)], 4).step([[falling(400_000)]] * 4, 0, network)
        times[reducer.kind] = sent.time_ps
    assert times["none"] / 2 < times["signsgd"] < times["none"]


def test_reliable_tensors_lose_no_packets() -> None:
    """The simulator, a random rule, and spread losses lose a fifth of all other packets."""
    values = torch.ones(61_440)
    values.view(60, 1024)[::2] *= 0.01
    pushes = [[Encoded((values,)) for _ in range(3)] for _ in range(4)]
    infos = [TensorInfo(name, (61_440,), 61_440, "float32", at) for at, name in enumerate("abc")]

    def loses(network, kept):
        masks = network.carry(Pushed(0, 0, 4096, infos, pushes, kept=kept)).arrived
        return [any(row[tensor] is not None for row in masks) for tensor in range(3)]

    made = (
        lambda: Simulated(Session(scenario())),
        lambda: Random(0.2),
        lambda: EvenLoss(Simulated(Session(scenario()))),
    )
    for make in made:
        assert loses(make(), ()) == [True] * 3
        assert loses(make(), [1]) == [True, False, True]
    played = Session(scenario()).step(made_trace(3, 60_000), reliable_tensors=[2])
    bounds = {
        int(tensor): float(bound)
        for tensor, bound, kind in zip(played.messages.tensor, played.messages.bound, played.messages.kind, strict=True)
        if KINDS[kind] == "push"
    }
    assert bounds == {0: 0.2, 1: 0.2, 2: 0.0}


@pytest.mark.parametrize("make", [
    lambda heard: SlimDP(every=2, sets="own").trainer(plain(), DATA, Recipe(workers=2, batch=4, steps=3), None, heard),
    lambda heard: MipdTrainer(plain(), DATA, Recipe(workers=2, batch=4, steps=3), MIPD(), heard),
], ids=["slimdp", "mipd"])  # fmt: skip
def test_key_tensors_are_marked_reliable(make) -> None:
    class Lossy(Heard):
        def carry(self, pushed: Pushed) -> Answer:
            self.pushed = pushed
            return Random(0.9).carry(pushed)

    heard = Lossy()
    make(heard).step()
    names = [info.name for info in heard.pushed.infos]
    assert {names[at] for at in heard.pushed.kept} == {name for name in names if name.endswith(".keys")} and KEYS == 2


def test_slimdp_over_simulator_loses_no_keys() -> None:
    asked = scenario(workers=2, transport={"kind": "dlcp", "payload": "512B"})
    network = RecordingNetwork(Simulated(Session(asked)))
    slim = SlimDP(alpha=0.9, beta=0.8, every=1, sets="own")
    trainer = slim.trainer(plain(), DATA, Recipe(workers=2, batch=4, steps=3, payload=512), None, network)
    for _ in range(3):
        trainer.step()
    masks = [mask for step in network.answers for round_ in step for row in round_.arrived for mask in row[KEYS::3]]
    assert masks and all(mask is None for mask in masks)


def test_plain_trainer_marks_no_tensor_reliable() -> None:
    heard = Heard()
    Trainer(plain(), DATA, Recipe(workers=2, batch=4, steps=1), TernGrad(), heard).step()
    assert tuple(heard.pushed.kept) == ()


def test_simulator_carries_diverged_training() -> None:
    """NaN and infinity exceed every number: their packets are important, and other packets are treated as
    before."""
    values = torch.ones(40 * 1024)
    values.view(40, 1024)[::2] *= 0.01
    values[5], values[3 * 1024] = torch.nan, torch.inf
    network = Simulated(Session(scenario()))
    for step in range(3):
        answer = network.carry(Pushed(step, 0, 4096, [one(40 * 1024)], [[Encoded((values,))]] * 4))
        masks = [row[0] for row in answer.arrived if row[0] is not None]
        assert all(mask[0] and mask[1::2].all() for mask in masks)
    assert masks and answer.time_ps > 0
    trainer = Trainer(plain(), DATA, Recipe(workers=4, batch=4, steps=6), None, Simulated(Session(scenario())))
    with torch.no_grad():
        next(iter(trainer.model.parameters())).fill_(torch.nan)
    rows = [trainer.step() for _ in range(3)]
    assert np.isnan(rows[-1].loss) and all(row.time_ps > 0 for row in rows)
