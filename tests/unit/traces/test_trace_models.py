"""The built-in models have the published numbers of parameters, the known layers, and learn from every input
they should and no other.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the models are PyTorch modules (extra: capture)")
from torch import nn  # noqa: E402

from gradwire import traces  # noqa: E402
from gradwire.scenarios.errors import TraceError  # noqa: E402
from gradwire.traces.models import MODELS, find_model  # noqa: E402
from gradwire.traces.models.attention import Attention  # noqa: E402
from gradwire.traces.models.bert import BERT  # noqa: E402
from gradwire.traces.models.cnn import VGG, CifarVGG  # noqa: E402
from gradwire.traces.models.gpt2 import GPT2  # noqa: E402
from gradwire.traces.models.recurrent import LSTMModel  # noqa: E402
from gradwire.traces.models.resnet import PreactivatedBlock  # noqa: E402
from gradwire.traces.models.transformer import Transformer, positions  # noqa: E402

# Exact counts: those of torchvision's models of that name, of pytorch-cifar (vgg*-cifar, resnet20, resnet110),
# of Hugging Face's BertForMaskedLM and GPT2LMHeadModel; sums over the layers of the papers for the others.
EXACT = {
    "alexnet": 61_100_840,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "vgg16-cifar": 14_728_266,
    "vgg19-cifar": 20_040_522,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "resnet8": 75_290,
    "resnet20": 269_722,
    # 19 convolutions, 10 norms that scale and shift, 10 that shift, and the linear layer
    "resnet20-v2": 267_696 + 2 * (16 + 3 * (16 + 32 + 64)) + (3 * 16 + (16 + 64) + (32 + 128) + 64) + 650,
    # 3 x 3 convolutions with biases and their norms, and the linear layer
    "vgg11-quarter": sum(
        9 * a * b + b + 2 * b
        for a, b in ((3, 16), (16, 32), (32, 64), (64, 64), (64, 128), (128, 128), (128, 128), (128, 128))
    )
    + 128 * 10
    + 10,
    # 128 characters and 256 places; per layer one projection of three, one out, a feed-forward of four, two norms
    "char-gpt": (128 + 256) * 128 + 2 * (4 * (128**2 + 128) + 2 * 4 * 128**2 + 4 * 128 + 128 + 4 * 128) + 2 * 128,
    "char-lstm": 345_728,  # 128 x 192, 4 x 192 x (192 + 192 + 2), 192 x 128 + 128
    "resnet110": 1_727_962,
    "googlenet": 13_004_888,
    "googlenet-plain": 6_624_904,
    "inception-v3": 27_161_264,
    "inception-v3-plain": 23_834_568,
    # embedding and softmax of 10,000, two layers of four gates with two matrices and two biases each
    "lstm": 2 * 10_000 * 650 + 10_000 + 2 * 4 * (2 * 650**2 + 2 * 650),
    "lstm-large": 2 * 10_000 * 1500 + 10_000 + 2 * 4 * (2 * 1500**2 + 2 * 1500),
    # one embedding; six layers with 4 and six with 8 projections of 512, feed-forwards of 2048, 2 and 3 norms
    "transformer-base": 37_000 * 512 + 6 * (12 * (512**2 + 512) + 2 * (2 * 512 * 2048 + 2048 + 512) + 5 * 2 * 512),
    "bert-base": 109_514_298,
    "gpt2-small": 124_439_808,
}

# Millions as papers and tables have them, to their last digit; the Transformer's "65" is for "about 37,000"
# tokens and is met within 3 %.
PUBLISHED = {
    "alexnet": 61.1,
    "vgg16": 138.4,
    "vgg19": 143.7,
    "resnet18": 11.7,
    "resnet50": 25.6,
    "resnet20": 0.27,
    "resnet110": 1.7,
    "googlenet": 13.0,
    "googlenet-plain": 6.6,
    "inception-v3": 27.2,
    "inception-v3-plain": 23.8,
    "lstm": 20,
    "lstm-large": 66,
    "bert-base": 110,
    "gpt2-small": 124,
}

# Layers with parameters by kind; a tied output matrix is a layer of its own.
LAYERS = {
    "alexnet": {"Conv2d": 5, "Linear": 3},
    "vgg16": {"Conv2d": 13, "Linear": 3},
    "vgg19": {"Conv2d": 16, "Linear": 3},
    "vgg16-cifar": {"Conv2d": 13, "BatchNorm2d": 13, "Linear": 1},
    "vgg19-cifar": {"Conv2d": 16, "BatchNorm2d": 16, "Linear": 1},
    "vgg11-quarter": {"Conv2d": 8, "BatchNorm2d": 8, "Linear": 1},
    "resnet18": {"Conv2d": 20, "BatchNorm2d": 20, "Linear": 1},
    "resnet50": {"Conv2d": 53, "BatchNorm2d": 53, "Linear": 1},
    "resnet8": {"Conv2d": 7, "BatchNorm2d": 7, "Linear": 1},
    "resnet20": {"Conv2d": 19, "BatchNorm2d": 19, "Linear": 1},
    "resnet20-v2": {"Conv2d": 19, "BatchNorm2d": 20, "Linear": 1},
    "char-lstm": {"Embedding": 1, "LSTM": 1, "Linear": 1},
    "char-gpt": {"Embedding": 2, "Linear": 2 * 4 + 1, "LayerNorm": 5},
    "resnet110": {"Conv2d": 109, "BatchNorm2d": 109, "Linear": 1},
    "googlenet": {"Conv2d": 59, "BatchNorm2d": 59, "Linear": 5},
    "googlenet-plain": {"Conv2d": 57, "BatchNorm2d": 57, "Linear": 1},
    "inception-v3": {"Conv2d": 96, "BatchNorm2d": 96, "Linear": 2},
    "inception-v3-plain": {"Conv2d": 94, "BatchNorm2d": 94, "Linear": 1},
    "lstm": {"Embedding": 1, "LSTM": 2, "Linear": 1},
    "lstm-large": {"Embedding": 1, "LSTM": 2, "Linear": 1},
    "transformer-base": {"Embedding": 1, "Linear": 6 * 6 + 6 * 10 + 1, "LayerNorm": 30},
    "bert-base": {"Embedding": 3, "Linear": 12 * 6 + 2, "LayerNorm": 26},
    "gpt2-small": {"Embedding": 2, "Linear": 12 * 4 + 1, "LayerNorm": 25},
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Several threads on a busy machine wait for each other far longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def shape_of(name: str) -> nn.Module:
    """The model at its published size, without numbers."""
    with torch.device("meta"):
        return MODELS[name].build().train()


@pytest.mark.parametrize("name", MODELS)
def test_model_has_expected_parameter_and_layer_counts(name: str) -> None:
    model = shape_of(name)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == EXACT[name] == MODELS[name].parameters
    kinds: dict[str, int] = {}
    for module in model.modules():
        if list(module.parameters(recurse=False)):
            kinds[type(module).__name__] = kinds.get(type(module).__name__, 0) + 1
    assert kinds == LAYERS[name]


@pytest.mark.parametrize(("name", "millions"), PUBLISHED.items())
def test_parameter_count_rounds_to_published_count(name: str, millions: float) -> None:
    digits = len(str(millions).partition(".")[2])
    assert round(EXACT[name] / 1e6, digits) == millions


def test_transformer_base_parameter_count_is_within_3_percent_of_paper() -> None:
    assert abs(EXACT["transformer-base"] / 65e6 - 1) < 0.03


def test_resnet50_with_ten_classes_has_parameters_of_bundled_trace() -> None:
    with torch.device("meta"):
        model = MODELS["resnet50"].build(10)
    assert sum(p.numel() for p in model.parameters()) == 25_557_032 - 990 * 2049  # of bundled trace
    assert len(list(model.parameters())) == 161


def shaped_input(name: str, size: int, device: str) -> tuple[torch.Tensor, ...]:
    kind = MODELS[name]
    if kind.task == "images":
        return (torch.randn(2, 3, size, size, device=device),)
    tokens = torch.randint(0, kind.outputs, (2, size), device=device)
    return (tokens, tokens) if kind.task == "pairs" else (tokens,)


@pytest.mark.parametrize("name", MODELS)
def test_model_runs_forward_and_backward_at_smallest_and_default_size(name: str) -> None:
    """Outputs have the expected shape, and every parameter gets a gradient."""
    kind, model = MODELS[name], shape_of(name)
    for size in (kind.sizes[0], kind.size):
        outputs = model(*shaped_input(name, size, "meta"))
        every = outputs if isinstance(outputs, tuple) else (outputs,)
        expected = (2, kind.outputs) if kind.task == "images" else (2, size, kind.outputs)
        assert {tuple(output.shape) for output in every} == {expected}
    sum(output.sum() for output in every).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def small(name: str) -> nn.Module:
    """The model with real numbers, at a size that a test can afford."""
    reduced = {
        "vgg16": lambda: VGG((8, 0, 8, 0, 512, 0, 0, 0), 10, hidden=32),
        "vgg16-cifar": lambda: CifarVGG((8, 0, 8, 0, 512, 0, 0, 0), 10),
        "lstm": lambda: LSTMModel(50, 16),
        "transformer-base": lambda: Transformer(50, 16, 4, 32, 2),
        "bert-base": lambda: BERT(50, 16, 4, 2, 32),
        "gpt2-small": lambda: GPT2(50, 16, 4, 2, 32),
    }
    return reduced[name]() if name in reduced else MODELS[name].build(10)


REAL = [
    "vgg16", "vgg16-cifar", "resnet18", "resnet50", "resnet20", "resnet20-v2", "resnet110", "googlenet", "inception-v3",
    "lstm",    "transformer-base", "bert-base", "gpt2-small",
]  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_new_model_has_near_chance_loss_and_finite_gradients(name: str) -> None:
    """The loss is near chance level; the gradient of each tensor is finite and not all zero."""
    torch.manual_seed(0)
    model, kind = small(name).train(), MODELS[name]
    classes = 10 if kind.task == "images" else 50
    if kind.task == "images":
        inputs: tuple[torch.Tensor, ...] = (torch.randn(4, 3, kind.sizes[0], kind.sizes[0]),)
        targets = torch.arange(4)
    else:
        tokens = torch.randint(0, 50, (4, 13))
        inputs = (tokens[:, :-1],) * (2 if kind.task == "pairs" else 1)
        targets = tokens[:, 1:].flatten()
    outputs = model(*inputs)
    every = outputs if isinstance(outputs, tuple) else (outputs,)
    loss = sum(nn.functional.cross_entropy(o.reshape(-1, classes), targets) for o in every) / len(every)
    assert loss.item() < 2.2 * torch.tensor(float(classes)).log()
    loss.backward()
    silent = [n for n, p in model.named_parameters() if not torch.isfinite(p.grad).all()]
    assert silent == []
    # A block that starts as its shortcut passes nothing on to what is inside it, in the first step.
    silent = [n for n, p in model.named_parameters() if "stages" not in n and not p.grad.abs().max() > 0]
    # Nothing depends on a key's bias: softmax takes out what all keys have in common.
    assert [name for name in silent if not name.endswith("key.bias")] == []


@pytest.mark.parametrize(
    "name", [name for name in REAL if "BatchNorm2d" in LAYERS[name]] + ["resnet8", "vgg11-quarter"]
)
def test_batch_norm_biases_change_within_three_steps(name: str) -> None:
    """At most one channel in a thousand has an unchanged normalisation bias after three steps. A channel that is zero on
    both paths of a block, and rectified, would never change."""
    torch.manual_seed(0)
    model, kind = small(name).train(), MODELS[name]
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    for _ in range(3):
        outputs = model(torch.randn(8, 3, kind.sizes[0], kind.sizes[0]))
        every = outputs if isinstance(outputs, tuple) else (outputs,)
        optimizer.zero_grad()
        sum(nn.functional.cross_entropy(each, torch.arange(8)) for each in every).backward()
        optimizer.step()
    norms = {f"{name}.bias" for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)}
    shifts = {key: value for key, value in model.named_parameters() if key in norms}
    still = {key: int((value == before[key]).sum()) for key, value in shifts.items()}
    channels = sum(value.numel() for value in shifts.values())
    assert sum(still.values()) <= channels / 1000, {key: many for key, many in still.items() if many}


def test_googlenet_and_inception_have_auxiliary_outputs_only_in_training() -> None:
    picture = torch.randn(2, 3, 96, 96, device="meta")
    for name, answers in (("googlenet", 3), ("googlenet-plain", 1), ("inception-v3", 2)):
        outputs = shape_of(name)(picture)
        assert len(outputs if isinstance(outputs, tuple) else (outputs,)) == answers
        assert shape_of(name).eval()(picture).shape == (2, 1000)
        shape_of(name).train()


def influence(model: nn.Module, tokens: torch.Tensor, place: int, *more: torch.Tensor) -> set[int]:
    """Places of the answer that change with the token at `place`."""
    model.eval()
    other = tokens.clone()
    other[0, place] = (other[0, place] + 1) % 50
    with torch.no_grad():
        difference = (model(tokens, *more) - model(other, *more)).abs().amax(-1)[0]
    return set(torch.nonzero(difference > 1e-7).flatten().tolist())


def test_outputs_depend_only_on_visible_token_positions() -> None:
    """Language models see the past, BERT sees all, the decoder sees its own past and the whole source."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 50, (1, 8))
    assert influence(small("gpt2-small"), tokens, 5) == {5, 6, 7}
    assert influence(small("lstm"), tokens, 5) == {5, 6, 7}
    assert influence(small("bert-base"), tokens, 5) == set(range(8))
    transformer = small("transformer-base")
    assert influence(transformer, tokens, 5, tokens[:, :4]) == {0, 1, 2, 3}

    class Turned(nn.Module):
        def forward(self, target: torch.Tensor) -> torch.Tensor:
            return transformer(tokens, target)

    turned = Turned()
    turned.inner = transformer
    assert influence(turned, tokens, 5) == {5, 6, 7}


def test_gpt2_and_bert_outputs_depend_on_token_order() -> None:
    """Swapping the first two tokens changes the last output, since positions are part of the input."""
    torch.manual_seed(0)
    tokens = torch.arange(8)[None]
    swapped = tokens[:, [1, 0, 2, 3, 4, 5, 6, 7]]
    for name in ("gpt2-small", "bert-base"):
        model = small(name).eval()
        assert not torch.allclose(model(tokens)[0, -1], model(swapped)[0, -1], atol=1e-6)


def test_attention_matches_its_formula() -> None:
    torch.manual_seed(0)
    attention = Attention(8, 2, dropout=0.0).double()
    x, memory = torch.randn(1, 3, 8).double(), torch.randn(1, 5, 8).double()
    heads = []
    for part in (slice(0, 4), slice(4, 8)):
        query = attention.query(x)[0, :, part]
        key, value = attention.key(memory)[0, :, part], attention.value(memory)[0, :, part]
        heads.append(torch.softmax(query @ key.T / 4**0.5, dim=-1) @ value)
    expected = attention.output(torch.cat(heads, dim=-1))
    torch.testing.assert_close(attention(x, memory)[0], expected)


def test_preactivated_block_matches_its_formula() -> None:
    """The block adds two convolutions of normalised and rectified values to its shortcut. The first norm has no scale and
    an epsilon of 0.001. With stride 2 the shortcut takes every second pixel; half of the new channels come before the
    input channels and half behind."""
    torch.manual_seed(0)
    block = PreactivatedBlock(2, 6, 2).double()
    nn.init.normal_(block.bn1.bias), nn.init.normal_(block.bn2.bias), nn.init.uniform_(block.bn2.weight, 0.5, 2)
    x = torch.randn(5, 2, 4, 4).double() + 3

    def rectified(y: torch.Tensor, epsilon: float, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        mean = y.mean(dim=(0, 2, 3), keepdim=True)
        y = (y - mean) / (((y - mean) ** 2).mean(dim=(0, 2, 3), keepdim=True) + epsilon).sqrt()
        return (y * scale[:, None, None] + shift[:, None, None]).clamp(min=0)

    def convolved(y: torch.Tensor, weight: torch.Tensor, stride: int) -> torch.Tensor:
        padded = torch.zeros(5, y.shape[1], y.shape[2] + 2, y.shape[3] + 2).double()
        padded[:, :, 1:-1, 1:-1] = y
        at = range(0, y.shape[2], stride)
        return torch.stack([
            torch.stack([torch.einsum("ncij,ocij->no", padded[:, :, i : i + 3, j : j + 3], weight) for j in at], dim=-1)
            for i in at
        ], dim=-2)  # fmt: skip

    y = convolved(rectified(x, 1e-3, torch.ones(2), block.bn1.bias), block.conv1.weight, 2)
    y = convolved(rectified(y, 1e-5, block.bn2.weight, block.bn2.bias), block.conv2.weight, 1)
    y[:, 2:4] += x[:, :, ::2, ::2]
    torch.testing.assert_close(block(x), y)
    assert [name for name, _ in block.bn1.named_parameters()] == ["bias"]


def test_resnet20_v2_initial_weights_are_within_two_standard_deviations() -> None:
    torch.manual_seed(0)
    model = MODELS["resnet20-v2"].build()
    wide = model.stages[2][1].conv2.weight.flatten()
    assert wide.std().item() == pytest.approx((64 * 9) ** -0.5, rel=0.02)
    assert 1.9 < wide.abs().max().item() * (64 * 9) ** 0.5 * 0.8796 <= 2.001
    last = model.fc.weight.flatten()  # of which the deviation is what it has before it is cut
    assert 1.8 < last.abs().max().item() * 8 <= 2.001
    assert not any(parameter.any() for name, parameter in model.named_parameters() if name.endswith("bias"))
    assert all(
        (parameter == 1).all() for name, parameter in model.named_parameters() if "bn" in name and "weight" in name
    )


def test_position_encodings_match_the_transformer_paper() -> None:
    table = positions(20, 6, torch.device("cpu"))
    for place, pair in ((0, 0), (7, 1), (19, 2)):
        angle = torch.tensor(place / 10_000 ** (2 * pair / 6))
        torch.testing.assert_close(table[place, 2 * pair], torch.sin(angle))
        torch.testing.assert_close(table[place, 2 * pair + 1], torch.cos(angle))


def test_bert_returns_outputs_of_chosen_positions_only() -> None:
    torch.manual_seed(0)
    model = small("bert-base").eval()
    tokens = torch.randint(0, 50, (2, 6))
    chosen = torch.zeros(2, 6, dtype=torch.bool)
    chosen[0, 4] = chosen[1, 1] = True
    torch.testing.assert_close(model(tokens, chosen), model(tokens)[chosen])


def test_output_matrix_is_tied_to_embedding() -> None:
    for name in ("transformer-base", "bert-base", "gpt2-small"):
        model = small(name)
        assert model.head.weight is model.embedding.weight


def test_unknown_model_error_suggests_or_lists_model_names() -> None:
    with pytest.raises(TraceError, match=r"model 'resnet_50'.*did you mean 'resnet50'"):
        find_model("resnet_50")
    with pytest.raises(TraceError, match="one of alexnet, vgg16"):
        find_model("perceptron")


def test_capture_docs_list_every_model_with_parameter_count() -> None:
    page = (Path(traces.__file__).resolve().parents[1] / "docs" / "capture.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for name, kind in MODELS.items():
        base = name.removesuffix("-plain")
        assert any(f"`{base}`" in row and f"{kind.parameters:,}" in row for row in rows), name


def test_default_sizes_and_learning_rates_of_models_are_valid() -> None:
    for kind in MODELS.values():
        assert kind.sizes[0] <= kind.size <= kind.sizes[1]
        assert dataclasses.replace(kind, batch=1).learning_rate > 0
