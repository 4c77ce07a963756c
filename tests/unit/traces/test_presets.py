"""Models as presets: published parameters, operations and throughputs; traces that follow from them by closed form."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from gradwire.analysis.comparison.compare import compare
from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.sim.simulate import simulate
from gradwire.traces.presets.generate import job_keys, layout_of, memory_note, model_trace
from gradwire.traces.presets.gpus import GPUS
from gradwire.traces.presets.layout import Layout
from gradwire.traces.presets.model_specs import MODEL_SPECS, ModelSpec, find_model, transformer
from gradwire.traces.presets.step_estimate import estimate_step
from gradwire.traces.trace import load_trace

PARAMETERS = {
    "llama-7b": 6_738_415_616, "llama-13b": 13_015_864_320, "llama-70b": 68_976_648_192,
    "llama-405b": 405_853_388_800, "mixtral-8x7b": 46_702_792_704, "gpt3-175b": 174_604_259_328,
    "resnet-50": 25_557_032, "vit-l": 304_326_632,
}  # fmt: skip
"""Of the published checkpoints (models of torchvision for the last two; GPT-3 with 50,257 tokens, from its table)."""
TINY = transformer("tiny", "tiny", 8, 512, 8, 1408, 1000, 256)


@pytest.mark.parametrize("name", PARAMETERS)
def test_presets_have_the_published_number_of_parameters(name: str) -> None:
    assert find_model(name).parameters == PARAMETERS[name]


@pytest.mark.parametrize("name, multiplications", [("resnet-50", 4.09e9), ("vit-l", 61.55e9)])
def test_forward_operations_are_those_that_torchvision_publishes(name: str, multiplications: float) -> None:
    """Its documentation counts multiplications with additions as one."""
    assert find_model(name).flops(1) / 3 / 2 == pytest.approx(multiplications, rel=0.01)


def test_operations_of_a_token_are_six_per_parameter_and_attention() -> None:
    """The rule of Kaplan et al. (2020), and causal attention: 6 N + 6 layers x hidden x length, less the embedding."""
    spec = find_model("llama-7b")
    rule = 6 * (spec.parameters - 32_000 * 4096) + 6 * 32 * 4096 * 4096
    assert spec.flops(4096) / 4096 == pytest.approx(rule, rel=0.001)


MEGATRON = [  # heads, hidden, layers, tensor, pipeline, GPUs, batch, TFLOPs of a GPU
    (24, 2304, 24, 1, 1, 32, 512, 137), (32, 3072, 30, 2, 1, 64, 512, 138), (32, 4096, 36, 4, 1, 128, 512, 142),
    (48, 6144, 40, 8, 1, 256, 1024, 135), (64, 8192, 48, 8, 2, 512, 1536, 138), (80, 10240, 60, 8, 4, 1024, 1792, 140),
    (96, 12288, 80, 8, 8, 1536, 2304, 148), (128, 16384, 96, 8, 16, 1920, 2160, 155),
    (128, 20480, 105, 8, 35, 2520, 2520, 163), (160, 25600, 128, 8, 64, 3072, 3072, 163),
]  # fmt: skip
"""Narayanan et al., SC '21 (arXiv 2104.04473), table 1 [recalled]: A100, 2,048 tokens, recomputation."""


@pytest.mark.parametrize("heads, hidden, layers, tensor, pipeline, gpus, batch, published", MEGATRON)
def test_estimate_is_within_a_tenth_of_megatron(
    heads: int, hidden: int, layers: int, tensor: int, pipeline: int, gpus: int, batch: int, published: float
) -> None:
    """Micro-batches of 2, and as many interleaved parts of up to 4 as divide a stage [ours]: the table has neither."""
    spec = transformer(
        "gpt", "GPT", layers, hidden, heads, 4 * hidden, 51_200, 2048, gated=False, bias=True, tied=True,
        positions=2048, flash=False,
    )  # fmt: skip
    parts = 1 if pipeline == 1 else max(part for part in range(1, 5) if layers // pipeline % part == 0)
    micros = batch // (gpus // tensor // pipeline) // 2
    layout = Layout(
        gpus, tensor, pipeline, micro_batch=2, micro_batches=micros, length=2048, layers=layers, recompute=True,
        sequence_parallel=False,
    )  # fmt: skip
    estimate = estimate_step(spec, GPUS["a100"], layout, 0.9 * 25e9, parts, recomputed=True)
    assert estimate.flops == pytest.approx(published * 1e12, rel=0.1)


@pytest.mark.parametrize(
    "gpus, context, length, sequences, published, mfu",
    [(8192, 1, 8192, 32, 430, 0.43), (16384, 1, 8192, 16, 400, 0.41), (16384, 16, 131_072, 16, 380, 0.38)],
)
def test_estimate_is_within_a_tenth_of_llama_3(
    gpus: int, context: int, length: int, sequences: int, published: float, mfu: float
) -> None:
    """Llama 3 (2024), table 4: H100 on 400 Gbps, tensor 8, pipeline 16. One layer per interleaved part, as there."""
    spec = find_model("llama-405b")
    layout = Layout(gpus, 8, 16, context=context, micro_batches=sequences, length=length, layers=126)
    estimate = estimate_step(spec, GPUS["h100"], layout, 0.9 * 50e9, interleaved=8)
    assert estimate.flops == pytest.approx(published * 1e12, rel=0.1)
    assert estimate.mfu == pytest.approx(mfu, rel=0.1)


def test_trace_holds_the_gradients_of_one_gpu() -> None:
    whole, halved = (model_trace(TINY, "a100", layout_of(TINY, tensor=size)) for size in (1, 2))
    assert whole.total_bytes == 2 * TINY.parameters and halved.total_bytes == TINY.parameters
    assert len(whole.layers) == 2 + 2 * 8 and not whole.communications
    calls = halved.communications
    assert len(calls) == 2 * 2 * 8, "an all-reduce after attention and feed-forward block, forward and backward"
    assert {(call.kind, call.group, call.bytes) for call in calls} == {("all_reduce", "tensor", 2 * 512 * 256)}
    assert halved.parallel == {"tensor": 2, "context": 1, "expert": 1, "pipeline": 1}
    assert whole.manifest["timing"] == "estimated: roofline"


def test_experts_are_divided_and_tokens_exchanged() -> None:
    spec = transformer("moe", "moe", 2, 512, 8, 1408, 1000, 256, experts=4, active=2)
    trace = model_trace(spec, layout=layout_of(spec, expert=4))
    groups = {tensor.group for tensor in trace.tensors}
    experts = [tensor for tensor in trace.tensors if tensor.group == "expert_data"]
    assert groups == {"data", "expert_data"} and [tensor.numel for tensor in experts] == [3 * 512 * 1408] * 2
    assert {(call.kind, call.group, call.bytes) for call in trace.communications} == {
        ("all_to_all", "expert", 2 * 512 * 2 * 256)
    }


@pytest.mark.parametrize("expert", [1, 4])
def test_tensor_ranks_sum_what_divided_experts_return(expert: int) -> None:
    """As after any divided block: two all-reduces of each layer and pass, of the values of all tokens."""
    spec = transformer("moe", "moe", 2, 512, 8, 1408, 1000, 256, experts=4, active=2)
    trace = model_trace(spec, layout=layout_of(spec, tensor=2, expert=expert))
    sums = Counter((call.turn, call.bytes) for call in trace.communications if call.group == "tensor")
    assert sums == {("forward", 2 * 512 * 256): 2 * 2, ("backward", 2 * 512 * 256): 2 * 2}


@pytest.mark.parametrize(
    "model, sizes, fsdp, gigabytes",
    [
        ("llama-7b", {}, False, 108),  # 6.74 G parameters, 16 bytes each
        ("llama-7b", {"gpus": 64}, True, None),  # 1.7 GB
        ("gpt3-175b", {"gpus": 64, "tensor": 8, "context": 2}, False, 349),
        ("gpt3-175b", {"gpus": 64, "tensor": 8, "context": 2}, True, 120),  # an eighth: 4 bytes, and 12 over 8 ranks
        ("gpt3-175b", {"gpus": 64, "tensor": 8, "pipeline": 8}, False, None),  # 44 GB
        ("resnet-50", {}, False, None),
    ],
)
def test_state_that_a_gpu_cannot_hold_is_noted(
    model: str, sizes: dict[str, int], fsdp: bool, gigabytes: int | None
) -> None:
    spec = find_model(model)
    note = memory_note(spec, GPUS["h100"], layout_of(spec, **sizes), fsdp)
    assert (f"take {gigabytes} GB a GPU, which has 80 GB" in note) if gigabytes else note == ""


def test_context_ranks_gather_keys_and_values_before_each_attention() -> None:
    """Their tokens, and so computing and the buffers of tensor ranks, are half; the gathered buffer is the whole."""
    one, two = (model_trace(TINY, layout=layout_of(TINY, tensor=2, context=size)) for size in (1, 2))
    assert two.parallel == {"tensor": 2, "context": 2, "expert": 1, "pipeline": 1}
    calls = Counter((call.kind, call.group, call.bytes) for call in two.communications)
    assert calls == {
        ("all_reduce", "tensor", 2 * 512 * 128): 2 * 2 * 8,
        ("all_gather", "context", 2 * 2 * 512 * 256 // 2): 8,
        ("reduce_scatter", "context", 2 * 2 * 512 * 256 // 2): 8,
    }
    assert two.total_bytes == one.total_bytes
    assert two.manifest["preset"]["flops"] == one.manifest["preset"]["flops"] / 2


def test_recomputation_adds_a_forward_pass() -> None:
    plain, again = (model_trace(TINY, layout=layout_of(TINY, recompute=on)).iterations[0] for on in (False, True))
    forward = int(plain.forward_end_ps[-1])
    assert again.backward_end_ps - plain.backward_end_ps == pytest.approx(forward, rel=0.001)


def test_part_of_a_model_states_the_sums_of_the_whole() -> None:
    part, whole = (model_trace(TINY, layout=layout_of(TINY, layers=layers)) for layers in (2, 8))
    entry, gradients = part.manifest["preset"], whole.total_bytes / part.total_bytes
    assert entry["layers"] == {"kept": 2, "of": 8} and whole.manifest["preset"]["layers"] == {"kept": 8, "of": 8}
    assert entry["whole"]["bytes"] == pytest.approx(gradients, rel=1e-6)
    assert entry["flops"] * entry["whole"]["flops"] == pytest.approx(whole.manifest["preset"]["flops"])
    seconds = entry["seconds"]
    assert sum(seconds.values()) == pytest.approx(part.iterations[0].end_ps / 1e12, rel=0.001)
    computing = sum(seconds[key] * entry["whole"][key] for key in seconds)
    assert computing == pytest.approx(whole.iterations[0].end_ps / 1e12, rel=0.001)


def test_run_of_a_part_brackets_the_run_of_the_whole(tmp_path: Path) -> None:
    """FSDP among 4 workers on slow links: the stated interval of the whole, from 2 of 8 layers, holds its time. Its
    computing is exact, though the workers divide the update, which the embedding dominates, and not the passes."""

    def run(spec: ModelSpec, layers: int) -> object:
        folder = model_trace(spec, "a100", layout_of(spec, layers=layers)).save(tmp_path / f"{layers}.trace")
        tables = {
            "name": "scaled",
            "topology": {"kind": "star", "hosts": 4},
            "transport": {"kind": "dctcp", "payload": "1000B"},
            "job": [{
                "name": "job", "trace": str(folder), "iterations": 3, "workers": 4,
                "exchange": {"kind": "fsdp", "unit": "2MiB"},
            }],
        }  # fmt: skip
        (verdict,) = compare([simulate(Scenario.model_validate(tables))]).verdicts
        return verdict.runs[0].bottleneck, verdict.text

    (part, text), (whole, whole_text) = run(TINY, 2), run(TINY, 8)
    low, high = part.usage.whole_ps(part.iteration_ps, part.waiting_ps)
    assert low < whole.iteration_ps < high
    assert low - part.waiting_ps == pytest.approx(whole.iteration_ps - whole.waiting_ps, rel=0.001)
    assert "Scaled from 2 to all 8 layers of tiny, an iteration takes " in text and "\u00b1" in text
    assert "It reaches an MFU of " in whole_text
    entry = load_trace(tmp_path / "8.trace").manifest["preset"]
    rate = entry["flops"] / (whole.iteration_ps / 1e12) / 312e12
    assert whole.as_dict()["model"]["mfu"] == pytest.approx(rate)


def test_stages_become_graphs_of_all_ranks() -> None:
    layout = layout_of(TINY, tensor=2, pipeline=2, gpus=8, micro_batches=4)
    trace = model_trace(TINY, layout=layout)
    assert trace.graphs is not None and trace.graphs.ranks == 8
    assert job_keys(trace, False) == ["workers = 8", 'exchange = { kind = "graph" }']


@pytest.mark.parametrize("model, gpu, sizes, said", [
    ("lama-7b", "h100", {}, "did you mean 'llama-7b'"), ("llama-7b", "h10", {}, "did you mean 'h100'"),
    ("resnet-50", "h100", {"tensor": 2}, "cannot be divided"), ("llama-7b", "h100", {"expert": 2}, "no experts"),
    ("llama-7b", "h100", {"layers": 33}, "1 to 32"), ("llama-7b", "h100", {"context": 3}, "4096 tokens do not divide into 3"),
    ("resnet-50", "h100", {"context": 2}, "no attention"),
    ("llama-7b", "h100", {"pipeline": 3, "gpus": 6}, "divides the layers"),
    ("llama-7b", "h100", {"pipeline": 2}, "--gpus N"), ("llama-7b", "h100", {"gpus": 9, "tensor": 2}, "multiple of 2"),
])  # fmt: skip
def test_layouts_that_do_not_fit_are_refused(model: str, gpu: str, sizes: dict[str, int], said: str) -> None:
    with pytest.raises(TraceError, match=said):
        model_trace(model, gpu, layout_of(MODEL_SPECS.get(model, TINY), **sizes))


def test_shares_of_a_roofline_add_up() -> None:
    """A pass without attention and activations takes its operations at the share of the peak."""
    spec = replace(TINY, first=(), last=(), repeated=(replace(TINY.repeated[1], activations=(0.0, 0.0)),))
    trace = model_trace(spec, "a100", layout_of(spec, micro_batch=64))
    forward = 8 * 2 * 3 * 512 * 1408 * 64 * 256 / (312e12 * 0.66)
    assert int(trace.iterations[0].forward_end_ps[-1]) / 1e12 == pytest.approx(forward, rel=0.001)
