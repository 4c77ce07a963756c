"""The simulator against real kernels under virtual time, and the effect that all this is about on real sockets.

`scenarios/library/agreement.toml` has the experiments and their tolerances: completion times within 2 %, drops and
marks within 3 % or 10 packets for what runs the simulator's rules (LTP's tail within 15 %); mean completion within 15 % for the kernel's TCP.
"""

from __future__ import annotations

import filecmp
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
from emu_cases import needs
from profiles import by_profile, is_usual

from gradwire.analysis.fidelity.fidelity import agreement
from gradwire.emu.testbed import Request
from gradwire.result_store.loss_bound_check import check_loss_invariant
from gradwire.result_store.result import Result
from gradwire.scenarios.loading.load import load_scenario
from gradwire.sim.perturbation import perturbed
from gradwire.sim.simulate import simulate
from gradwire.studies.connect import emulate

pytestmark = needs("uml", "tool:tc")

POLICIES = (
    "leaf-spine-dlcp", "star-dlcp", "leaf-spine-constant", "star-constant", "star-ltp", "star-timely", "star-swift",
    "dctcp", "newreno",
)  # fmt: skip
TRIED_ON = {
    "red": ("leaf-spine-dlcp", "star-constant", "star-ltp", "dctcp"),
    "bpf": ("star-dlcp", "leaf-spine-constant", "star-timely", "star-swift", "newreno"),
    "userspace": ("leaf-spine-dlcp", "star-dlcp", "dctcp"),
}
"""What is tried on which switches: each policy on one of the kernel, and on `userspace` spraying, selective drops and the
kernel's TCP with marks; all on all with `--hypothesis-profile thorough`. The table of docs/fidelity.md has them all."""
PAIRS = [
    (policy, switch)
    for policy in POLICIES  # one after the other: what is simulated of each is simulated once
    for switch in ("red", "bpf", "userspace")
    if not is_usual() or policy in TRIED_ON[switch]
]
_simulated: dict[str, list[Result]] = {}


def variant(policy: str, name: str = "agreement", *changes: str):
    return load_scenario(name, set=list(changes)).variant(policy)


def simulated(policy: str) -> list[Result]:
    """The simulation, and those that differ from it by nanoseconds."""
    if policy not in _simulated:
        chosen = variant(policy)
        _simulated[policy] = [simulate(each) for each in (chosen, *perturbed(chosen, chosen.fidelity.spread))]
    return _simulated[policy]


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "switch"), PAIRS)
def test_emulation_agrees_with_simulation(policy, switch):
    chosen = variant(policy)
    sim, *others = simulated(policy)
    emu = emulate(chosen, request=Request("virtual", switch))
    found = agreement(sim, emu, chosen.fidelity, others)
    assert found.is_within, "\n".join(found.verdicts())
    assert found.matched == sim.messages.num_rows
    assert not check_loss_invariant(emu)


def test_agreement_detects_a_slower_link():
    """A link of 97 % of the rate differs by more than the tolerance."""
    sim = simulated("leaf-spine-constant")[0]
    emu = emulate(variant("leaf-spine-constant", "agreement", "link.rate=970Mbps"), request=Request("virtual", "red"))
    changed = Result(**{**vars(emu), "summary": {**emu.summary, "scenario_hash": sim.summary["scenario_hash"]}})
    found = agreement(sim, changed, variant("leaf-spine-constant").fidelity)
    assert {measure.what for measure in found.missed} >= {"completion_mean", "completion_p50"}


@pytest.mark.parametrize("switch", ["red", "bpf", "userspace"])
def test_kernel_timeouts_take_as_long_as_simulated(switch, tmp_path):
    """Two slow starts share one port. One transfer loses its last packet, the other a whole window and then its
    retransmissions. Both wait for their timers, so every time-out that is longer than simulated shows."""
    file = tmp_path / "two.toml"
    file.write_text("""
name = "two"
topology = { kind = "star", hosts = 3 }
link = { rate = "1Gbps", latency = "10us" }
link_override = [{ between = ["h1", "s0"], latency = "10384ns" }, { between = ["h2", "s0"], latency = "11114ns" }]
host = { software_latency = "40us" }
switch = { buffer = "96KiB", selective_drop = false }
transport = { kind = "tcp_newreno", payload = "1400B", min_rto = "10ms" }
emulation = { loss_recovery = "classic", host_queue = "packet" }
traffic = [{ kind = "incast", name = "in", fan_in = 2, receiver = "h0", size = "3MB", rounds = 2, period = "200ms" }]
""")
    chosen = load_scenario(str(file))
    runs = simulate(chosen), emulate(chosen, request=Request("virtual", switch))
    took = [{m["message"]: m["end_ps"] - m["start_ps"] for m in run.messages.to_pylist()} for run in runs]
    assert all(each["retransmitted"] for each in runs[0].messages.to_pylist())
    assert took[1] == pytest.approx(took[0], rel=0.04)


@pytest.mark.slow
def test_kernel_host_queue_is_simulated():
    """The hosts of a ring have several steps to send at a time, without losses. If connections took turns, steps
    would be 6 % faster on average."""

    def mean(host_queue: str, real: bool = False) -> float:
        chosen = variant("cu-ring", "agreement-tcp", f"emulation.host_queue={host_queue}").with_kernels_tcp()
        run = emulate(chosen, request=Request("virtual", "bpf")) if real else simulate(chosen)
        return float(pc.mean(pc.subtract(run.messages["end_ps"], run.messages["start_ps"])).as_py())

    kernel = mean("kernel", real=True)
    assert mean("kernel") == pytest.approx(kernel, rel=0.03)
    assert mean("packet") < 0.95 * kernel


@pytest.mark.parametrize("switch", ["red", "bpf", "userspace"])
def test_jumbo_frames_agree_with_simulation(switch, tmp_path):
    """Packets have 9 kB, six times Ethernet's usual size. Cables have two lengths, so that packets do not tie."""
    file = tmp_path / "jumbo.toml"
    file.write_text("""
name = "jumbo"
topology = { kind = "star", hosts = 3 }
link = { rate = "500Mbps", latency = "20us" }
host = { software_latency = "50us" }
switch = { buffer = "64KiB", ecn_threshold = "32KiB", selective_drop = true }
transport = { kind = "dlcp", payload = "8900B", stop_policy = "eager", rate_control = "dctcp" }
emulation = { side_channel = "udp" }  # of one queue: TCP's own acknowledgements would be marked, too
link_override = [{ between = ["h2", "s0"], latency = "27110ns" }]

[[traffic]]
name = "in"
kind = "incast"
fan_in = 2
receiver = "h0"
size = "500kB"
bound = 0.1
droppable = true
rounds = 5
period = "40ms"

[fidelity]
completion_mean = 0.02
drops = 0.03
""")
    chosen = load_scenario(str(file))
    runs = [simulate(chosen), emulate(chosen, request=Request("virtual", switch))]
    found = agreement(*runs, chosen.fidelity)
    assert found.is_within, "\n".join(found.verdicts())
    assert next(each.sim for each in found.measures if each.what == "drops" and each.where == "all ports") > 50
    for run in runs:  # what is missing is what was lost, message by message
        lost = dict(zip(run.messages["message"].to_pylist(), run.messages["lost_bytes"].to_pylist(), strict=True))
        sums = run.missing.group_by("message").aggregate([("bytes", "sum")])
        summed = dict(zip(sums["message"].to_pylist(), sums["bytes_sum"].to_pylist(), strict=True))
        assert summed and summed == {number: each for number, each in lost.items() if each}


@pytest.mark.parametrize("switch", ["red", "bpf", "userspace"])
def test_virtual_runs_are_byte_identical(switch, tmp_path):
    """The run contains all kinds of randomness: spraying, losses on cables, paths, DLCP and TCP."""
    text = f"""
name = "twice"
seed = 7
load_balancing = "spray_random"
topology = {{ kind = "leaf_spine", leaves = 2, hosts_per_leaf = 2, spines = 2 }}
link = {{ rate = "200Mbps", latency = "20us", loss = 0.01 }}
host = {{ software_latency = "100us" }}
switch = {{ buffer = "48KiB", ecn_threshold = "16KiB", selective_drop = true }}
transport = {{ kind = "dlcp", payload = "1400B" }}

[[traffic]]
kind = "all_to_all"
name = "{switch}"
size = "60kB"
bound = 0.1
droppable = true
priority = 2

[[traffic]]
kind = "permutation"
name = "tcp"
size = "60kB"
transport = {{ kind = "cubic", payload = "1400B", min_rto = "10ms" }}
"""
    file = tmp_path / "twice.toml"
    file.write_text(text)
    for number in ("one", "two"):
        command = [sys.executable, "-m", "gradwire", "emulate", str(file), "--clock", "virtual", "--switch", switch]
        done = subprocess.run(
            [*command, "--out", str(tmp_path / number)], capture_output=True, text=True, timeout=300,
            cwd=Path(__file__).resolve().parents[2],
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in (tmp_path / "one").iterdir() if path.name != "timing.json")
    assert len(names) >= 9
    same, different, errors = filecmp.cmpfiles(tmp_path / "one", tmp_path / "two", names, shallow=False)
    assert same == names and not different and not errors
    ports = Result.read(tmp_path / "one").ports
    assert sum(ports["drops_loss"].to_pylist()) > 0
    assert json.loads((tmp_path / "one" / "result.json").read_text())["engine"]["valid"]


def job(side_channel: str, **changes: str):
    """One iteration of the scenario `testbed` with DLCP, and two that differ from it by nanoseconds."""
    chosen = variant("dlcp", "testbed", "job.iterations=1", f'emulation.side_channel="{side_channel}"')
    chosen = chosen.model_copy(update={"transport": chosen.transport.model_copy(update=changes)})
    return chosen, *perturbed(chosen, 2)


def mean(runs: list[Result], column: str) -> float:
    """Of a column of `ports`, summed over all of them."""
    return float(np.mean([sum(run.ports[column].to_pylist()) for run in runs]))


@pytest.mark.slow
def test_emulated_drops_agree_under_repeated_loss():
    """Senders probe for missing packets, even if the probes are lost, and only they repeat them. Nanoseconds decide some
    percent of the drops here, in both, so these are means of the same runs. Senders keep the rate of their line, or
    little is dropped."""
    runs = job("udp", stop_policy="eager", send_order="sequential", rate_control="dctcp", floor=1)[: by_profile(3, 2)]
    sims = [simulate(each) for each in runs]
    emus = [virtually(each) for each in runs]
    assert mean(emus, "drops_tail") == pytest.approx(mean(sims, "drops_tail"), rel=0.05)
    for run in (*sims, *emus):
        pushes = run.messages.filter(pc.equal(run.messages["kind"], "push"))
        by_host = pushes.group_by("src").aggregate([("sent_packets", "sum")])["sent_packets_sum"].to_pylist()
        assert len(by_host) == 8 and min(by_host) > 0.7 * max(by_host), "no host stood still"
        assert run.summary["engine"].get("substitutions", []) == []


@pytest.mark.slow
def test_emulated_job_agrees_and_tcp_side_channel_adds_drops():
    """By the rules alone as many packets are dropped and marked as in the simulator. Over TCP each Stop and Bitmap is
    acknowledged through the full port. Data loses that capacity and is retransmitted, which adds as many packets."""
    sims = [simulate(each) for each in job("udp")]
    udp, tcp = ([virtually(each) for each in job(kind)] for kind in ("udp", "tcp"))
    assert mean(udp, "drops_tail") == pytest.approx(mean(sims, "drops_tail"), rel=0.08)
    assert mean(udp, "marks") == pytest.approx(mean(sims, "marks"), rel=0.2)
    assert mean(tcp, "marks") < 1.2 * mean(sims, "marks"), "acknowledgements are no data, and do not wait with it"
    assert mean(sims, "drops_tail") < mean(tcp, "drops_tail") < 1.4 * mean(sims, "drops_tail")
    for emus in (udp, tcp):
        assert took(emus) == pytest.approx(took(sims), rel=0.03)
        assert slowest(emus) == pytest.approx(slowest(sims), rel=0.05)


def took(runs: list[Result]) -> float:
    """Mean iteration."""
    return float(
        np.mean([np.mean(r.iterations["end_ps"].to_numpy() - r.iterations["start_ps"].to_numpy()) for r in runs])
    )


def slowest(runs: list[Result]) -> float:
    """p99 of all messages' completion times."""
    times = [run.messages["end_ps"].to_numpy() - run.messages["start_ps"].to_numpy() for run in runs]
    return float(np.mean([np.percentile(each, 99) for each in times]))


@pytest.mark.slow
@pytest.mark.parametrize("side_channel", ["tcp", "udp"])
def test_emulated_job_with_slow_receiver_agrees_with_simulation(side_channel):
    """One host has 100 Mbit/s among hosts with 1 Gbit/s. Iterations agree within 3 % and the p99 within 5 %."""
    changes = [("slow-receiver", f"seed={seed}", f'emulation.side_channel="{side_channel}"') for seed in (1, 2)]
    chosen = [load_scenario(name, set=list(those)) for name, *those in changes]
    sims, emus = ([run(each) for each in chosen] for run in (simulate, virtually))
    assert took(emus) == pytest.approx(took(sims), rel=0.03)
    assert slowest(emus) == pytest.approx(slowest(sims), rel=0.05)
    assert mean(sims, "drops_tail") > 100


def virtually(scenario) -> Result:
    return emulate(scenario, request=Request("virtual", "bpf"))


@pytest.mark.slow
def test_dlcp_is_faster_than_kernel_tcp_with_shallow_buffer():
    """Eight workers push real gradients to one server. DLCP's iterations are close to the link's limit; the kernel's
    TCP waits for time-outs."""
    changes = ("job.iterations=2",)
    times = {}
    for policy in ("cubic", "dlcp"):
        result = emulate(variant(policy, "testbed", *changes), request=Request("virtual", "red"))
        assert not check_loss_invariant(result) and result.summary["totals"]["finished"]
        rows = result.iterations
        times[policy] = (rows["end_ps"].to_numpy() - rows["start_ps"].to_numpy()) / 1e12
        if policy == "cubic":
            assert not np.any(result.messages["lost_bytes"].to_numpy())
    # 8 x 1.08 MB to the server and back at 100 Mbit/s, with headers
    ideal = 2 * 8 * 269_722 * 4 * 8 * (1458 / 1400) / 100e6
    assert times["dlcp"].mean() < 1.2 * ideal
    assert times["cubic"].mean() > 1.5 * times["dlcp"].mean()
    assert times["cubic"].max() > 1.5 * times["dlcp"].max()
