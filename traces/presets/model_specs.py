"""Shapes of well-known models as blocks with parameters, operations and activations.

A *unit* is what one pass of one sample computes: a token of a language model, a picture, or a sample. Operations
count a multiplication and an addition as two. Activations are bytes of 16-bit values that element-wise kernels read and
write in a forward pass: twice the 34 b s h (plus 5 a s^2 b without a fused attention) that Korthikanti et al. (MLSys
'23, section 4) count as stored [ours].

Sources: GPT-3 (Brown et al. 2020, table 2.1); LLaMA (Touvron et al. 2023, table 2) and Llama 2 (table 1 and its model
card); Llama 3 (2024, table 3); Mixtral (Jiang et al. 2024, table 1); ViT (Dosovitskiy et al. 2021, table 1); ResNet (He
et al. 2016, table 1; stride in the 3x3 convolution as torchvision has it); DLRM as in MLPerf (Criteo 1TB: 26 tables
of 128 values).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from gradwire.scenarios.advice import nearest
from gradwire.scenarios.errors import TraceError


@dataclass(frozen=True)
class Block:
    """One layer of a trace.

    parameters : elements. flops : of a forward pass, per unit. attention_flops : the same per unit of the sample's
        length, as every unit attends to others; half of it with a causal mask.
    activations : bytes per unit that tensor ranks divide, and bytes that they divide only with sequence parallelism.
    collective : ranks that wait for each other after it, in both passes, and bytes of the buffer per unit: "tensor"
        (all-reduce), "expert" or "data" (all-to-all), or "".
    split : tensor ranks divide parameters and operations. expert : expert ranks divide its parameters.
    local : its gradients are not exchanged.
    """

    name: str
    parameters: int
    flops: float
    attention_flops: float = 0.0
    activations: tuple[float, float] = (0.0, 0.0)
    collective: tuple[str, float] = ("", 0.0)
    split: bool = True
    expert: bool = False
    local: bool = False


@dataclass(frozen=True)
class ModelSpec:
    """A model: blocks before, `repeats` times those in the middle, and blocks after.

    length : units of a sample. batch : samples of a micro-batch by default. hidden : values that a unit carries from
    one block to the next. keys_values : values of a unit that the attention of others reads.
    """

    name: str
    title: str
    first: tuple[Block, ...]
    repeated: tuple[Block, ...]
    last: tuple[Block, ...]
    repeats: int
    length: int
    batch: int
    hidden: int
    unit: str = "token"
    keys_values: int = 0

    def blocks(self, repeats: int | None = None) -> Iterator[Block]:
        """Yield the blocks in forward order, with the middle ones `repeats` times instead of all times."""
        yield from self.first
        for _ in range(self.repeats if repeats is None else repeats):
            yield from self.repeated
        yield from self.last

    @property
    def parameters(self) -> int:
        """Number of parameters of the whole model."""
        return sum(block.parameters for block in self.blocks())

    def flops(self, length: int, repeats: int | None = None) -> float:
        """Return the operations of forward and backward pass of a sample of `length` units: three forward passes.
        Recomputation does not count."""
        return 3 * length * sum(block.flops + block.attention_flops * length for block in self.blocks(repeats))


def transformer(
    name: str,
    title: str,
    layers: int,
    hidden: int,
    heads: int,
    feed_forward: int,
    vocabulary: int,
    length: int,
    *,
    kv_heads: int | None = None,
    gated: bool = True,
    bias: bool = False,
    tied: bool = False,
    positions: int = 0,
    experts: int = 1,
    active: int = 1,
    flash: bool = True,
) -> ModelSpec:
    """Return a decoder. `gated` : three matrices in the feed-forward block instead of two. `tied` : the head has the
    embedding's weights. `positions` : learned position embeddings. `active` : experts of a token, of `experts`."""
    norm = 2 * hidden if bias else hidden
    kv = hidden * (kv_heads or heads) // heads
    attention = 2 * hidden * (hidden + kv)
    matrices = 3 if gated else 2
    expert = matrices * hidden * feed_forward
    biases = (2 * hidden + 2 * kv, feed_forward + hidden) if bias else (0, 0)
    common, exchanged = (24.0 * hidden, 10.0 * hidden), ("tensor", 2.0 * hidden)
    unfused = 0.0 if flash else 10.0 * heads * length
    first = Block("embedding", (vocabulary + positions) * hidden, 0.0, activations=(0.0, 4.0 * hidden))
    traffic = (common[0] + unfused, common[1])
    middle = [Block("attention", attention + biases[0] + norm, 2.0 * attention, 2.0 * hidden, traffic, exchanged)]
    if experts == 1:
        middle.append(Block("mlp", expert + biases[1] + norm, 2.0 * expert, 0.0, common, exchanged))
    else:
        tokens = ("expert", 2.0 * hidden * active)
        router = hidden * experts
        middle.append(Block("router", router + norm, 2.0 * router, collective=tokens, split=False))
        middle.append(Block("experts", expert * experts, 2.0 * expert * active, 0.0, common, tokens, expert=True))
    head = Block("head", norm + (0 if tied else vocabulary * hidden), 2.0 * vocabulary * hidden)
    return ModelSpec(name, title, (first,), tuple(middle), (head,), layers, length, 1, hidden, keys_values=2 * kv)


def vision_transformer(name: str, title: str, layers: int, hidden: int, feed_forward: int, classes: int) -> ModelSpec:
    """Return a ViT on pictures of 224 x 224 in patches of 16 x 16; a unit is a picture of 197 tokens."""
    tokens, patch = 197, 3 * 16 * 16 * hidden
    attention, mlp = 4 * hidden * hidden, 2 * hidden * feed_forward
    traffic, exchanged = (24.0 * hidden * tokens, 10.0 * hidden * tokens), ("tensor", 2.0 * hidden * tokens)
    first = Block("patches", patch + hidden + hidden + tokens * hidden, 2.0 * patch * (tokens - 1), split=False)
    scores = 4.0 * hidden * tokens * tokens
    middle = (
        Block("attention", attention + 6 * hidden, 2.0 * attention * tokens + scores, 0.0, traffic, exchanged),
        Block("mlp", mlp + feed_forward + 3 * hidden, 2.0 * mlp * tokens, 0.0, traffic, exchanged),
    )
    last = Block("head", 2 * hidden + hidden * classes + classes, 2.0 * hidden * classes, split=False)
    return ModelSpec(name, title, (first,), middle, (last,), layers, 1, 64, hidden * tokens, "picture")


def resnet50() -> ModelSpec:
    """Return ResNet-50 on pictures of 224 x 224. A convolution writes its output, and normalisation, activation and the
    next one read it: four passes over 16-bit values [ours]."""

    def convolution(name: str, side: int, inputs: int, outputs: int, kernel: int) -> Block:
        weights = kernel * kernel * inputs * outputs
        traffic = (0.0, 2.0 * 4 * side * side * outputs)
        return Block(name, weights + 2 * outputs, 2.0 * weights * side * side, activations=traffic, split=False)

    blocks = [convolution("conv1", 112, 3, 64, 7)]
    inputs = 64
    for stage, (count, width, side) in enumerate(((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7)), 2):
        for number in range(count):
            before = side * 2 if number == 0 and stage > 2 else side
            name = f"conv{stage}_{number + 1}"
            blocks.append(convolution(f"{name}.1", before, inputs, width, 1))
            blocks.append(convolution(f"{name}.2", side, width, width, 3))
            blocks.append(convolution(f"{name}.3", side, width, 4 * width, 1))
            if number == 0:
                blocks.append(convolution(f"{name}.shortcut", side, inputs, 4 * width, 1))
            inputs = 4 * width
    blocks.append(Block("fc", 2048 * 1000 + 1000, 2.0 * 2048 * 1000, split=False))
    return ModelSpec("resnet-50", "ResNet-50", tuple(blocks), (), (), 0, 1, 128, 0, "picture")


def dlrm() -> ModelSpec:
    """Return DLRM of MLPerf: embeddings of 26 features lie on their owners, and an all-to-all brings the vectors."""
    features, width = 26, 128

    def layers(name: str, sizes: tuple[int, ...]) -> Block:
        weights = sum(a * b for a, b in pairwise(sizes))
        return Block(name, weights + sum(sizes[1:]), 2.0 * weights, activations=(0.0, 8.0 * sum(sizes)), split=False)

    pairs, vectors = (features + 1) * features // 2, 2.0 * features * width
    rows = 204_184_588  # of all tables, with at most 40 million each
    embedding = Block("embeddings", rows * width, 0.0, 0.0, (0.0, vectors), ("data", vectors), split=False, local=True)
    interaction = Block("interaction", 0, 2.0 * (features + 1) ** 2 * width, 0.0, (0.0, 4.0 * pairs), split=False)
    blocks = (embedding, layers("bottom", (13, 512, 256, width)), interaction)
    top = layers("top", (pairs + width, 1024, 1024, 512, 256, 1))
    return ModelSpec("dlrm", "DLRM of MLPerf (Criteo 1TB)", blocks, (), (top,), 0, 1, 2048, 0, "sample")


GPT = {"gated": False, "bias": True, "tied": True}
MODEL_SPECS: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        transformer("llama-7b", "Llama 2 7B", 32, 4096, 32, 11008, 32_000, 4096),
        transformer("llama-13b", "Llama 2 13B", 40, 5120, 40, 13824, 32_000, 4096),
        transformer("llama-70b", "Llama 2 70B", 80, 8192, 64, 28672, 32_000, 4096, kv_heads=8),
        transformer("llama-405b", "Llama 3 405B", 126, 16384, 128, 53248, 128_256, 8192, kv_heads=8),
        transformer("gpt3-175b", "GPT-3 175B", 96, 12288, 96, 49152, 50_257, 2048, **GPT, positions=2048),
        transformer("mixtral-8x7b", "Mixtral 8x7B", 32, 4096, 32, 14336, 32_000, 4096, kv_heads=8, experts=8, active=2),
        dlrm(),
        resnet50(),
        vision_transformer("vit-l", "ViT-L/16", 24, 1024, 4096, 1000),
    )
}
"""Models by name."""


def find_model(name: str) -> ModelSpec:
    """Return the model of that name. Raises TraceError with the nearest names."""
    if name not in MODEL_SPECS:
        known = nearest(name.lower().replace("_", "-"), MODEL_SPECS)
        raise TraceError("unknown model", repr(name), f"one of {', '.join(MODEL_SPECS)}{known}")
    return MODEL_SPECS[name]
