"""Gradients of N workers at once are those of each in turn."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

from gradwire.scenarios.errors import ScenarioError  # noqa: E402
from gradwire.traces.models.resnet import CifarResNet, PreactivatedResNet  # noqa: E402
from gradwire.training.backward.worker_gradients import FastestGradients, JointGradients, sequential_gradients  # noqa: E402


class Text(nn.Module):
    """A little of everything that texts are learned with."""

    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16, padding_idx=padding)
        self.norm, self.plain = nn.LayerNorm(16), nn.LayerNorm(16, bias=False)
        self.mix = nn.Conv1d(16, 16, 3, padding=1, groups=2)
        self.head = nn.Linear(16, 30, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.embedding(tokens))
        y = y + torch.relu(self.mix(y.transpose(1, 2))).transpose(1, 2)
        return self.head(self.plain(y))


class Padded(nn.Module):
    """Convolutions whose padding has a name, is not alike on both sides, or is no zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.even = nn.Conv2d(3, 4, (4, 3), padding="same", dilation=(1, 2))
        self.none = nn.Conv2d(4, 4, 2, padding="valid", stride=2, bias=False)
        self.round = nn.Conv2d(4, 4, 3, padding=(1, 2), padding_mode="circular", groups=2)
        self.mirrored = nn.Conv1d(4, 5, 2, padding="same", padding_mode="reflect")
        self.head = nn.Linear(5 * 24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.round(torch.tanh(self.none(torch.tanh(self.even(x))))))
        return self.head(self.mirrored(y.flatten(2)).flatten(1))


def of_images(model, inputs, targets):
    return cross_entropy(model(*inputs), targets, reduction="none")


def of_text(model, inputs, targets):
    return cross_entropy(model(*inputs).transpose(1, 2), targets, reduction="none")


def made(kind: str):
    torch.manual_seed(3)
    if kind in ("resnet", "shifting norms", "norms without scale"):
        model = CifarResNet(1, 10) if kind == "resnet" else PreactivatedResNet(1, 10)
        for each in [
            each
            for each in model.modules()
            if kind == "norms without scale" and "weight" in getattr(each, "_buffers", {})
        ]:
            del each.weight
            each.register_parameter("weight", None)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.2)
        return model.double(), of_images, (torch.randn(12, 3, 8, 8).double(),), torch.randint(10, (12,))
    if kind == "padded":
        return Padded().double(), of_images, (torch.randn(12, 3, 8, 8).double(),), torch.randint(10, (12,))
    tokens = torch.randint(30, (12, 7))
    return Text(5 if kind == "padding" else None).double(), of_text, (tokens,), torch.randint(30, (12, 7))


@pytest.mark.parametrize("kind", ["resnet", "shifting norms", "norms without scale", "text", "padding", "padded"])
@pytest.mark.parametrize("workers", [2, 3, 12])
def test_joint_gradients_equal_sequential_gradients(kind: str, workers: int) -> None:
    """They agree to rounding in float64, with batch statistics of each worker."""
    if kind in ("resnet", "shifting norms") and workers == 12:
        pytest.skip("a batch norm over one sample")
    model, loss, inputs, targets = made(kind)
    expected = sequential_gradients(model, loss, inputs, targets, workers)
    together = JointGradients(model, workers)
    assert not together.missing
    got = together(loss, inputs, targets)
    assert got[0] == pytest.approx(expected[0], rel=1e-9)
    for mine, theirs in zip(got[1], expected[1], strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert torch.allclose(a, b, rtol=1e-7, atol=1e-10)
    assert any(not torch.allclose(a, b) for a, b in zip(got[1][0], got[1][1], strict=True)), "workers differ"


def test_joint_gradients_leave_model_unchanged_except_statistics() -> None:
    """Parameters and forward functions stay, and no gradients remain; running statistics move."""
    model, loss, inputs, targets = made("resnet")
    model.eval()
    before = model(*inputs)
    model.train()
    state = {
        name: value.clone()
        for name, value in model.state_dict().items()
        if "running" not in name and "tracked" not in name
    }
    JointGradients(model, 3)(loss, inputs, targets)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in state.items())
    assert all(p.grad is None for p in model.parameters())
    assert all("forward" not in vars(module) for module in model.modules())
    model.eval()
    assert not torch.equal(model(*inputs), before), "running statistics have moved"


def test_running_statistics_are_the_mean_of_the_workers() -> None:
    norm, x = nn.BatchNorm2d(4), torch.randn(6, 4, 5, 5)
    model = nn.Sequential(norm, nn.Flatten(), nn.Linear(100, 3))
    JointGradients(model, 2)(of_images, (x,), torch.randint(3, (6,)))
    alone = []
    for half in x.chunk(2):
        single = nn.BatchNorm2d(4)
        single(half)
        alone.append((single.running_mean, single.running_var))
    assert torch.allclose(norm.running_mean, (alone[0][0] + alone[1][0]) / 2, atol=1e-6)
    assert torch.allclose(norm.running_var, (alone[0][1] + alone[1][1]) / 2, atol=1e-6)
    assert int(norm.num_batches_tracked) == 1


@pytest.mark.parametrize("momentum", [0.1, None])
def test_sequential_and_joint_gradients_leave_equal_statistics(momentum: float | None) -> None:
    """Running statistics and their counts agree, also for a norm that is applied twice. Constant buffers and frozen
    norms stay as they are."""

    class Norms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.twice, self.frozen = nn.BatchNorm2d(4, momentum=momentum), nn.BatchNorm2d(4)
            self.register_buffer("third", torch.full((5,), 1 / 3))
            self.head = nn.Linear(100, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.frozen(self.twice(torch.relu(self.twice(x)))).flatten(1))

    model, steps = Norms(), 3
    model.frozen.eval()
    twin = copy.deepcopy(model)
    for seed in range(steps):
        torch.manual_seed(seed)
        x, y = torch.randn(9, 4, 5, 5), torch.randint(3, (9,))
        JointGradients(model, 3)(of_images, (x,), y)
        sequential_gradients(twin, of_images, (x,), y, 3)
    if momentum is not None:  # without one, it depends on the count, which all at once moves last
        assert torch.allclose(model.twice.running_mean, twin.twice.running_mean, atol=1e-6)
        assert torch.allclose(model.twice.running_var, twin.twice.running_var, atol=1e-6)
    assert int(model.twice.num_batches_tracked) == int(twin.twice.num_batches_tracked) == 2 * steps
    assert int(twin.frozen.num_batches_tracked) == 0 and torch.equal(twin.frozen.running_var, torch.ones(4))
    assert torch.equal(twin.third, torch.full((5,), 1 / 3))


def test_cpu_computes_large_batches_one_worker_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients and statistics are equal either way. Small batches run jointly after the first step, which
    compares."""
    from gradwire.traces.models import find_model
    from gradwire.training.backward import worker_gradients as module

    turns: list[int] = []
    in_turn = module.sequential_gradients

    def counted(model, loss, inputs, targets, workers):
        turns.append(len(targets))
        return in_turn(model, loss, inputs, targets, workers)

    monkeypatch.setattr(module, "sequential_gradients", counted)
    for samples, expected in ((8, [24, 24]), (4, [12])):
        torch.manual_seed(1)
        turns.clear()
        model = find_model("resnet8").build(10)
        twin = copy.deepcopy(model)
        answers = FastestGradients(model, 3)
        for _ in range(2):
            x, y = torch.randn(3 * samples, 3, 16, 16), torch.randint(10, (3 * samples,))
            (losses, found), (at_once, others) = (
                answers(of_images, (x,), y),
                JointGradients(twin, 3)(of_images, (x,), y),
            )
            assert losses == pytest.approx(at_once, rel=1e-6)
            assert all(
                torch.allclose(a, b, atol=1e-6)
                for mine, theirs in zip(found, others, strict=True)
                for a, b in zip(mine, theirs, strict=True)
            )
            assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(model.buffers(), twin.buffers(), strict=True))
        assert turns == expected


def test_gradients_of_reused_layer_are_summed() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.one(torch.tanh(self.one(x)))

    model = Twice().double()
    x, y = torch.randn(8, 6).double(), torch.randint(6, (8,))
    got, expected = JointGradients(model, 4)(of_images, (x,), y), sequential_gradients(model, of_images, (x,), y, 4)
    for mine, theirs in zip(got[1], expected[1], strict=True):
        assert all(torch.allclose(a, b, rtol=1e-9) for a, b in zip(mine, theirs, strict=True))


class Placed(nn.Module):
    """Has an embedding of positions, whose input is no run of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position, self.head = nn.Embedding(30, 8), nn.Embedding(12, 8), nn.Linear(8, 30)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embedding(tokens) + self.position(torch.arange(tokens.shape[1]))))


@pytest.mark.parametrize("length", [7, 12], ids=["does not come apart", "comes apart wrongly"])
def test_inseparable_model_falls_back_to_sequential_gradients(length: int) -> None:
    model = Placed().double()
    inputs, targets = (torch.randint(30, (12, length)),), torch.randint(30, (12, length))
    expected = sequential_gradients(model, of_text, inputs, targets, 4)
    gradients = FastestGradients(model, 4)
    for _ in range(2):
        losses, got = gradients(of_text, inputs, targets)
        assert losses == expected[0]
        for mine, theirs in zip(got, expected[1], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_first_step_updates_running_statistics_once() -> None:
    """The first step computes gradients both ways, but leaves running statistics as one way does."""
    model, loss, inputs, targets = made("resnet")
    other, *_ = made("resnet")
    JointGradients(other, 3)(loss, inputs, targets)
    FastestGradients(model, 3)(loss, inputs, targets)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), other.buffers(), strict=True))


def test_model_with_unsupported_layers_uses_sequential_gradients() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Bilinear(4, 4, 2)) if False else nn.LSTM(4, 4)
    assert "weight_ih_l0" in JointGradients(model, 2).missing

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.unused = nn.LSTM(4, 3, batch_first=True), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(x)[0][:, -1]

    head = Head()
    losses, gradients = FastestGradients(head, 2)(of_images, (torch.randn(4, 5, 4),), torch.randint(3, (4,)))
    assert len(losses) == 2 and [len(each) for each in gradients] == [6, 6]
    assert gradients[0][-1].abs().sum() == 0, "what is not used has a gradient of zero"


def test_batch_norm_over_one_value_raises_named_error() -> None:
    """The error names the layer, its input and a remedy; two samples per worker are enough. Other errors pass
    unchanged."""
    model = nn.Sequential(nn.Conv2d(3, 4, 8), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 10))

    def odd(model, inputs, targets):
        raise ValueError("odd")

    with pytest.raises(
        ScenarioError, match=r"training.batch: gives the batch norm 1 one value per channel, \(1, 4, 1, 1\)"
    ):
        FastestGradients(model, 2)(of_images, (torch.randn(2, 3, 8, 8),), torch.tensor([0, 1]))
    FastestGradients(model, 2)(of_images, (torch.randn(4, 3, 8, 8),), torch.tensor([0, 1, 2, 3]))
    with pytest.raises(ValueError, match=r"^odd$"):
        FastestGradients(model, 2)(odd, (torch.randn(4, 3, 8, 8),), torch.tensor([0, 1, 2, 3]))


def off(by: float, also_in_float64: bool):
    """A loss that is another one where more than two samples are looked at, in float32 or always: as rounding is."""

    def loss(model, inputs, targets):
        logits = model(*inputs)
        here = len(targets) > 2 and (also_in_float64 or logits.dtype == torch.float32)
        return cross_entropy(logits, targets, reduction="none") * (1 + by * here)

    return loss


@pytest.mark.parametrize(
    ("also_in_float64", "way"), [(False, "all workers at once"), (True, "one worker after the other")]
)
def test_float64_decides_whether_joint_and_sequential_gradients_agree(also_in_float64: bool, way: str) -> None:
    """If both ways differ in float32, a comparison in float64 decides; no parameter moves."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))
    before = copy.deepcopy(model.state_dict())
    x, y, loss = torch.randn(4, 3, 8, 8), torch.randint(3, (4,)), off(0.01, also_in_float64)
    fastest = FastestGradients(model, 2)
    fastest(loss, (x,), y)
    assert fastest.method_text == way and not fastest.slower, "on a processor there is nothing to say of it"
    fastest(loss, (x,), y)
    assert model[1].num_batches_tracked == 2
    assert all(
        torch.equal(before[name], value)
        for name, value in model.state_dict().items()
        if name.endswith(("weight", "bias"))
    )


def test_gpu_warns_about_slow_sequential_gradients_with_reason() -> None:
    """The warning says that a GPU takes ten times as long."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    for each, loss, why in (
        (model, off(0.01, True), "computed all at once they differ"), (nn.LSTM(4, 4), of_images, "weight_ih_l0 belongs to an unsupported layer"),
    ):  # fmt: skip
        fastest = FastestGradients(each, 2)
        fastest.on_gpu = True
        with pytest.warns(UserWarning, match=f"one worker after the other: {why}.*; a GPU takes ten times as long"):
            if isinstance(each, nn.LSTM):
                loss = lambda model, inputs, targets: model(inputs[0])[0].square().sum(dim=(1, 2))
                fastest(loss, (torch.randn(4, 2, 4),), torch.zeros(4))
            else:
                fastest(loss, (torch.randn(4, 3, 2, 2),), torch.randint(3, (4,)))
        assert len(fastest.slower) == 1 and why in fastest.slower[0]


# --- on a GPU: recorded -----------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["resnet8", "resnet20-v2", "vgg11-quarter", "char-gpt"])
def test_cuda_graph_replay_equals_eager_gradients_bit_for_bit(name: str) -> None:
    """Each replay has other samples and moved parameters; gradients and running statistics agree."""
    from gradwire.traces.models import find_model
    from gradwire.training.backward.worker_gradients import RecordedGraph
    from gradwire.training.devices import deterministic
    from gradwire.training.trainer import losses_of

    text = name == "char-gpt"
    with deterministic(torch.device("cuda")):
        torch.manual_seed(1)
        model = find_model(name).build(30).cuda().train()
        twin = copy.deepcopy(model)
        replayed, together = RecordedGraph(model, JointGradients(model, 4).stacked), JointGradients(twin, 4)
        for _ in range(4):
            inputs = torch.randint(30, (8, 16)).cuda() if text else torch.randn(8, 3, 32, 32).cuda()
            targets = torch.randint(30, (8, 16) if text else (8,)).cuda()
            losses, gradients = replayed(losses_of, (inputs,), targets)
            expected, others = together(losses_of, (inputs,), targets)
            assert losses == expected
            assert all(
                torch.equal(a, b) for x, y in zip(gradients, others, strict=True) for a, b in zip(x, y, strict=True)
            )
            assert all(torch.equal(a, b) for a, b in zip(model.buffers(), twin.buffers(), strict=True))
            with torch.no_grad():
                for each in (*model.parameters(), *twin.parameters()):
                    each.mul_(0.9)
    assert any(each.any() for each in gradients[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("momentum", [0.1, None])
def test_recorded_gradients_equal_eager_ones_or_fall_back(momentum: float | None) -> None:
    """Without momentum a batch norm counts steps in Python, which a recording would not."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=momentum), nn.Flatten(), nn.Linear(144, 3)
    ).cuda()
    twin = copy.deepcopy(model)
    recorded, eager = FastestGradients(model, 2, recorded=True), FastestGradients(twin, 2)
    slow = pytest.warns(UserWarning, match="cannot be replayed: ") if momentum is None else nullcontext()
    for number in range(5):
        x, y = torch.randn(4, 3, 8, 8).cuda(), torch.randint(3, (4,)).cuda()
        with slow if number == 1 else nullcontext():
            losses, found = recorded(of_images, (x,), y)
        expected, others = eager(of_images, (x,), y)
        assert losses == pytest.approx(expected, rel=1e-5)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found[1], others[1], strict=True))
        assert all(
            torch.allclose(a.float(), b.float(), atol=1e-6)
            for a, b in zip(model.buffers(), twin.buffers(), strict=True)
        )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["resnet8", "resnet20", "resnet20-v2", "vgg11-quarter"])
def test_bundled_models_are_replayed_as_cuda_graphs(name: str, precision: str) -> None:
    """Batches have the size that replay is meant for, and no reason against it is reported."""
    from gradwire.traces.models import find_model
    from gradwire.training.devices import deterministic
    from gradwire.training.precision import in_precision
    from gradwire.training.trainer import losses_of

    device = torch.device("cuda")
    with deterministic(device):
        torch.manual_seed(0)
        fastest = FastestGradients(find_model(name).build(30).cuda().train(), 8, recorded=True)
        inputs, targets = torch.randn(2048, 3, 32, 32).cuda(), torch.randint(30, (2048,)).cuda()
        for _ in range(2):
            fastest(in_precision(losses_of, precision, device), (inputs,), targets)
    assert fastest.method_text == "all workers at once, replayed" and fastest.slower == []
