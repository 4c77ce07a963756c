"""The bytes of messages: gradients as the trace has them, sums of what arrived, and that what is wrong is found."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from contents_cases import Network
from sim_cases import MS, make_trace, ps_job, ring_job, scenario

from gradwire.emu.agent.host_part import GATHER
from gradwire.emu.agent.payload.magnitudes import Magnitudes, prepare
from gradwire.emu.results.verify import verify
from gradwire.result_store.table_schema import KINDS
from gradwire.traces.trace import Trace, load_trace

DLCP = {"kind": "dlcp", "payload": "1024B"}
TAGS = {"magnitude": True}
PLAIN = make_trace([[300, 5000], [20_000, 7], [30_001], [12]], iterations=3, skew=777_777, forward=MS // 50)
LOSSY = {"tagging": TAGS, "push_bound": 0.3, "pull_bound": 0.2, "pull_important": False, "iterations": 2}


def typed(trace: Trace, *types: str) -> Trace:
    """The same with elements of other types, one after the other, powers of two as scale, and means below maxima."""
    tensors = [
        replace(tensor, dtype=types[number % len(types)], scale_exponent=number % 7 - 3)
        for number, tensor in enumerate(trace.tensors)
    ]
    mean = trace._max * np.random.default_rng(3).uniform(0.05, 1, trace._max.shape).astype(np.float16)
    return Trace(trace.manifest, trace.layers, tensors, trace.iterations, mean, trace._max)


TRACE = typed(PLAIN, "float32")


# --- gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet50", "gpt2-small", "lstm"])
def test_gradient_chunks_match_mean_and_maximum_of_the_trace(name, tmp_path):
    trace = load_trace(name)
    magnitudes = Magnitudes(prepare([trace], tmp_path)[0])
    captured = len(trace.iterations) - 1
    for tensor in range(0, len(trace.tensors), 5):
        info = trace.tensors[tensor]
        count = min(info.numel, 100_000)
        values = magnitudes.gradient(3, "job", 1, captured, tensor, 0, count)
        mean, largest = trace.magnitudes(captured, tensor)
        for run in range(count // 256):
            size = np.abs(values[run * 256 : (run + 1) * 256].astype(np.float64))
            assert size.mean() == pytest.approx(mean[run], rel=2e-6)
            assert size.max() <= largest[run] * (1 + 1e-6)
        assert 0.4 < (values > 0).mean() / max((values != 0).mean(), 1e-9) < 0.6 or count < 500


def test_last_chunk_of_a_tensor_averages_only_its_own_elements(tmp_path):
    trace = TRACE
    magnitudes = Magnitudes(prepare([trace], tmp_path)[0])
    for tensor, info in enumerate(trace.tensors):
        last = (info.chunks - 1) * 256
        values = np.abs(magnitudes.gradient(1, "job", 0, 2, tensor, last, info.numel - last).astype(np.float64))
        mean, largest = trace.magnitudes(2, tensor)
        assert (
            values.mean() == pytest.approx(mean[-1], rel=1e-5) and values.max() <= max(largest[-1], mean[-1]) * 1.00001
        )


def test_slices_of_a_gradient_equal_slices_of_the_whole_gradient(tmp_path):
    magnitudes = Magnitudes(prepare([TRACE], tmp_path)[0])
    whole = magnitudes.gradient(1, "job", 0, 1, 3, 0, 7)
    assert len(whole) == 7
    whole = magnitudes.gradient(1, "job", 0, 1, 2, 0, 20_000)
    for first, count in ((0, 1), (255, 2), (256, 256), (1000, 5000), (19_999, 1), (19_000, 1000)):
        part = magnitudes.gradient(1, "job", 0, 1, 2, first, count)
        assert (part == whole[first : first + count]).all() and len(part) == count


def test_gradients_differ_by_seed_job_worker_iteration_and_tensor(tmp_path):
    magnitudes = Magnitudes(prepare([TRACE], tmp_path)[0])
    keys = [
        (1, "a", 0, 0, 2),
        (2, "a", 0, 0, 2),
        (1, "b", 0, 0, 2),
        (1, "a", 1, 0, 2),
        (1, "a", 0, 1, 2),
        (1, "a", 0, 0, 4),
    ]
    made = [magnitudes.gradient(*key, 0, 512) for key in keys]
    signs = [np.sign(values) for values in made]
    for one in range(len(keys)):
        for other in range(one):
            assert abs((signs[one] * signs[other]).mean()) < 0.25, (keys[one], keys[other])
    assert (magnitudes.gradient(*keys[0], 0, 512) == made[0]).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_gradients_have_the_element_type_of_the_tensor(dtype, tmp_path):
    trace = typed(TRACE, dtype)
    magnitudes = Magnitudes(prepare([trace], tmp_path)[0])
    values = magnitudes.gradient(1, "job", 0, 0, 4, 0, 30_001)
    assert values.itemsize == trace.tensors[4].element_bytes
    mean, _ = trace.magnitudes(0, 4)
    sizes = np.abs(values[:25_600].astype(np.float64)).reshape(-1, 256).mean(axis=1)
    assert sizes == pytest.approx(mean[:100], rel=2e-3 if values.itemsize == 2 else 1e-5)


def test_agent_modules_import_no_heavy_packages():
    program = (
        "import sys; import gradwire.emu.agent.payload.contents, gradwire.emu.agent.script, gradwire.emu.agent.payload.magnitudes;"
        "print(sorted(set(sys.modules) & "
        "{'pydantic', 'pyarrow', 'numba', 'simpy', 'torch', 'networkx', "
        "'gradwire.sim', 'gradwire.scenarios.schema.scenario', 'gradwire.analysis'}))"
    )
    root = __file__.rsplit("/tests/", 1)[0]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


# --- sums -----------------------------------------------------------------------------------------

CASES = {
    "servers": scenario(ps_job(3, 2, exchange={"partition": "16KiB"}, **LOSSY), transport=DLCP),
    "colocated": scenario(ps_job(4, 3, exchange={"colocated": True, "partition": "16KiB", "server_rate": "9Gbps"}, order="layer", **LOSSY), transport=DLCP),
    "ring": scenario(ring_job(4, bucket="50KB", **LOSSY), transport=DLCP),
    **{
        kind: scenario({"workers": n, "exchange": {"kind": kind, "bucket": "50KB", **more}, **LOSSY}, transport=DLCP)
        for kind, n, more in (
            ("halving_doubling", 5, {}), ("transpose", 4, {}), ("tree", 5, {}), ("double_tree", 5, {"chunks": 2}),
            ("hierarchical", 6, {"group": 3}),
        )
    },
    "slices": scenario(ring_job(3, scheduler={"kind": "p3", "slice": "16kB"}, **LOSSY), transport=DLCP),
    "rebuilt buckets": scenario(ring_job(3, scheduler={"kind": "ddp", "bucket": "60kB"}, **LOSSY), transport=DLCP),
    "two jobs and traffic": scenario(
        ps_job(2, 1, placement={"workers": ["h0", "h1"], "servers": ["h0"]}, **LOSSY),
        ring_job(3, placement={"workers": ["h0", "h1", "h2"]}, jitter=0.1, **LOSSY),
        transport=DLCP,
        traffic=[{"name": "burst", "kind": "all_to_all", "size": "5kB", "droppable": True, "bound": 0.3}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("types", [("float32",), ("float32", "float16", "float64")], ids=["plain", "mixed"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_sums_contain_exactly_the_gradients_that_arrived(case, types, tmp_path):
    net = Network(case, typed(TRACE, *types), tmp_path).run()
    assert net.done
    lost = [arrival for arrival in net.arrivals.values() if arrival.lost]
    assert len(lost) > 20
    assert verify(net.evidence()) == []
    assert sum(each.buffer_bytes() for each in net.contents.values()) == 0, "every buffer was given back"


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_sums_of_zero_gradients_keep_the_sign_bit(case, tmp_path):
    """Zero gradients are 0.0 or -0.0, and their sums match to the bit."""
    nothing = Trace(TRACE.manifest, TRACE.layers, TRACE.tensors, TRACE.iterations, 0 * TRACE._mean, 0 * TRACE._max)
    net = Network(case, nothing, tmp_path).run()
    sent = [net.magnitudes[0].gradient(1, "job0", 0, 0, 4, 0, 1000)]
    assert np.signbit(sent[0]).any() and not sent[0].any()
    assert verify(net.evidence()) == []


def test_lossless_pull_carries_the_sum_of_all_workers_gradients(tmp_path):
    """For one tensor, the pulled bytes equal the sum of the gradients of all workers."""
    net = Network(scenario(ps_job(3)), TRACE, tmp_path)
    pulled = {}
    original = net.deliver

    def deliver(message):
        pulled[message] = net.content[message]
        original(message)

    net.deliver = deliver
    net.run()
    rows = net.program.messages
    (pull, *_) = [n for n in range(len(rows)) if rows.kind[n] == 1 and rows.tensor[n] == 4]
    parts = [net.magnitudes[0].gradient(1, "job0", worker, worker, 4, 0, 30_001) for worker in range(3)]
    assert (np.frombuffer(pulled[pull], np.float32) == parts[0] + parts[1] + parts[2]).all()


@pytest.mark.parametrize("name", ["colocated", "ring"])
def test_gradients_prepared_ahead_give_correct_sums(name, tmp_path):
    net = Network(CASES[name], TRACE, tmp_path)
    for contents in net.contents.values():
        made = 0
        while contents.prepare_next(100_000):
            made += 1
        assert made > 3 and 100_000 <= contents.buffer_bytes() < 100_000 + 32_768
        send = contents.outgoing
        contents.outgoing = lambda message, send=send, more=contents.prepare_next: (send(message), more(100_000))[0]
    assert verify(net.run().evidence()) == []
    assert sum(contents.buffer_bytes() for contents in net.contents.values()) == 0


def test_buffer_memory_stays_below_twelve_model_sizes(tmp_path):
    net = Network(scenario(ps_job(4, 2, iterations=3)), TRACE, tmp_path).run()
    model = TRACE.total_bytes
    assert net.most_held <= 12 * model  # of one iteration: pushes at both ends, or sums and pulls


def test_gather_kind_is_all_gather():
    assert KINDS[GATHER] == "all_gather"


# --- what is wrong is found -----------------------------------------------------------------------


@pytest.fixture(params=["servers", "ring"])
def net(request, tmp_path):
    return Network(CASES[request.param], TRACE, tmp_path)


def some_lossy(net):
    return next(message for message, arrival in sorted(net.arrivals.items()) if arrival.lost)


def test_verify_detects_a_flipped_byte(net):
    original = net.send

    def send(message):
        original(message)
        if message == 5:
            net.content[5] = bytes([net.content[5][0] ^ 1]) + net.content[5][1:]

    net.send = send
    for script in net.scripts.values():
        script._send = send
    found = verify(net.run().evidence())
    assert any("message 5 " in line and "packet 0 differs from what was sent" in line for line in found), found


def test_verify_detects_a_lost_packet_counted_as_received(net):
    net.run()
    message = some_lossy(net)
    have = net.arrivals[message].have.copy()
    have[np.flatnonzero(~have)[0]] = True
    net.arrivals[message] = replace(net.arrivals[message], have=have)
    found = "\n".join(verify(net.evidence()))
    assert "its packets have" in found and "differs from what was sent" in found


def test_verify_detects_a_received_packet_counted_as_lost(net):
    net.run()
    message = max({each for sums in net.program.sums for each in sums or ()})
    have = net.evidence().have(message).copy()
    there = np.flatnonzero(have)[0]
    have[there] = False
    given, size = net.arrivals[message], int(net.evidence().sizes(message)[there])
    net.arrivals[message] = replace(given, have=have, received=given.received - size, lost=given.lost + size)
    found = "\n".join(verify(net.evidence()))
    assert "arrived although reported lost" in found and "has wrong contents" in found


def test_verify_detects_wrong_byte_counts(net):
    net.run()
    message = some_lossy(net)
    net.arrivals[message] = replace(net.arrivals[message], received=net.arrivals[message].received + 1)
    assert any("its packets have" in line for line in verify(net.evidence()))


def test_verify_detects_loss_bound_violation_and_lost_important_packet(net):
    net.run()
    message = some_lossy(net)
    have = np.zeros(len(net.arrivals[message].have), dtype=bool)
    size = int(net.program.messages.nbytes[message])
    net.arrivals[message] = replace(net.arrivals[message], have=have, received=0, lost=size)
    found = "\n".join(verify(net.evidence()))
    assert "bound 0." in found and "lost important packet" in found


def test_verify_detects_a_loss_budget_violation(net):
    """Every message is within its own bound, but their sum exceeds the shared budget."""
    net.run()
    some_lossy(net)
    rows = net.program.messages
    net.program = replace(net.program, messages=replace(rows, share=rows.bound, pool=1 + rows.kind))
    assert not verify(net.evidence())
    net.program = replace(net.program, messages=replace(rows, share=rows.bound / 100, pool=1 + rows.kind))
    found = verify(net.evidence())
    assert found and all(
        "and those that share its budget lost" in line for line in found if "more of this kind" not in line
    )


def test_verify_detects_a_missing_summand(net):
    for contents in net.contents.values():
        add = contents._add

        def without_last(message, carried, add=add):
            if len(carried.sums or ()) + carried.own > 1:
                carried = carried._replace(sums=carried.sums[:-1], places=carried.places[:-1])
            return add(message, carried)

        contents._add = without_last
    assert any("has wrong contents" in line for line in verify(net.run().evidence()))


def test_verify_detects_a_different_order_of_addition(tmp_path):
    net = Network(CASES["servers"], TRACE, tmp_path)
    for contents in net.contents.values():
        add = contents._add
        contents._add = lambda message, carried, add=add: add(message, carried._replace(sums=carried.sums[::-1]))
    assert any("has wrong contents" in line for line in verify(net.run().evidence()))


def test_verify_detects_gradients_of_wrong_magnitude(net):
    net.magnitudes[0]._exponent = [value + 3 for value in net.magnitudes[0]._exponent]
    assert any("in the trace" in line for line in verify(net.run().evidence()))


def test_verify_detects_a_gradient_slice_at_the_wrong_offset(net):
    for contents in net.contents.values():
        contents.part.carries.update({m: c._replace(first=0) for m, c in contents.part.carries.items()})
    assert any("has wrong contents" in line for line in verify(net.run().evidence()))


def test_verify_detects_missing_messages_only_in_complete_runs(net):
    net.run()
    last = max(net.arrivals)
    del net.arrivals[last]
    assert any(f"message {last} " in line and "did not arrive" in line for line in verify(net.evidence()))
    assert verify(net.evidence(), complete=False) == []


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_interrupted_run_passes_verification_as_incomplete_only(case, tmp_path):
    net = Network(case, TRACE, tmp_path)
    original, many = net.deliver, len(net.program.messages)
    net.deliver = lambda message: original(message) if len(net.arrivals) < many // 2 else None
    net.run()
    assert len(net.arrivals) == many // 2
    assert verify(net.evidence(), complete=False) == []
    assert verify(net.evidence()) != []
