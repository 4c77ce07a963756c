"""Runs a collective over sizes on a preset, and returns the rows of nccl-tests' table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.readable import count_text
from gradwire.scenarios.units import format_size
from gradwire.studies.busbw.collectives import TYPE_BYTES, Collective
from gradwire.studies.busbw.machine import Constants, FluidWire, HostSpec, Wire
from gradwire.studies.busbw.nccl_tuning import ALGORITHMS, PROTOCOLS
from gradwire.studies.busbw.presets import Preset
from gradwire.studies.busbw.time_model import Estimate, TimeModel, choose
from gradwire.studies.busbw.wire import PacketWire

OnProgress = Callable[[float, str], object]
MOST_RANKS = 1 << 16


@dataclass(frozen=True)
class Row:
    """One size. Times in microseconds, bandwidths in GB/s (1e9 bytes); `algorithm` as "ring/Simple"."""

    size: int
    count: int
    time_us: float
    algbw: float
    busbw: float
    algorithm: str = ""


@dataclass(frozen=True)
class CollectiveTest:
    """A test to run, in the words of nccl-tests' options.

    algorithms, protocols : allowed ones, as by NCCL_ALGO and NCCL_PROTO; all if empty.
    """

    collective: Collective
    ranks: int
    sizes: tuple[int, ...]
    datatype: str = "float"
    redop: str = "sum"
    algorithms: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """Rows of one preset under one policy, with remarks on how they were computed."""

    label: str
    rows: tuple[Row, ...]
    host: HostSpec | None = None
    hosts: int = 0
    constants: Constants | None = None
    remarks: tuple[str, ...] = field(default=())

    @property
    def mean_busbw(self) -> float:
        """Mean bus bandwidth over all sizes, as nccl-tests prints it."""
        return sum(row.busbw for row in self.rows) / len(self.rows) if self.rows else 0.0


def run_test(test: CollectiveTest, preset: Preset, label: str, threads: int = 1, ideal: bool = False) -> Outcome:
    """Run a test on a preset.

    ideal : True for a wire without packets, on which every NIC is busy for its bytes.

    Raises ScenarioError if the ranks do not fill hosts, or nothing is allowed.
    """
    hosts, gpus = layout_of(preset, test.ranks)
    host, constants = preset.host_spec(gpus), preset.fitted_constants()
    wire: Wire = FluidWire(host.nic_gbytes) if ideal else PacketWire(preset, hosts, threads)
    element = TYPE_BYTES[test.datatype]
    sizes = [test.collective.actual_size(size, test.ranks, element) for size in test.sizes]
    estimates = TimeModel(host, hosts, constants, wire).estimates(
        test.collective.name, [max(1, each) for each in sizes]
    )
    times, names = choose(_allowed(estimates, test), host.tuner)
    rows = [
        make_row(
            test.collective, test.ranks, size, test.collective.count(given, test.ranks, element), float(time), name
        )
        for given, size, time, name in zip(test.sizes, sizes, times, names, strict=True)
    ]
    return Outcome(label, tuple(rows), host, hosts, constants, _remarks(wire, hosts))


def make_row(collective: Collective, ranks: int, size: int, count: int, time_us: float, algorithm: str = "") -> Row:
    """Return a row with its bandwidths."""
    algbw = size / time_us / 1000 if time_us > 0 else 0.0
    return Row(size, count, time_us, algbw, algbw * collective.factor(ranks), algorithm)


def layout_of(preset: Preset, ranks: int) -> tuple[int, int]:
    """Return the hosts, and the accelerators of each that take part. Raises ScenarioError if they do not divide."""
    gpus = preset.host.gpus
    if not 2 <= ranks <= MOST_RANKS:
        raise ScenarioError("is out of range", f"--ranks {ranks}", f"2 to {MOST_RANKS}")
    if ranks <= gpus:
        return 1, ranks
    if ranks % gpus:
        raise ScenarioError(f"does not fill hosts of {gpus} accelerators", f"--ranks {ranks}", f"a multiple of {gpus}")
    return ranks // gpus, gpus


def _allowed(estimates: Sequence[Estimate], test: CollectiveTest) -> list[Estimate]:
    """Return the estimates that the overrides allow; a collective without algorithms (p2p) ignores them."""
    chosen = [
        each
        for each in estimates
        if each.algorithm == "p2p"
        or (
            (not test.algorithms or each.algorithm in test.algorithms)
            and (not test.protocols or PROTOCOLS[each.protocol] in test.protocols)
        )
    ]
    if not chosen:
        known = ", ".join(dict.fromkeys(each.name for each in estimates))
        raise ScenarioError("nothing is left to choose from", "--algo, --proto", f"some of {known}")
    return chosen


def _remarks(wire: Wire, hosts: int) -> tuple[str, ...]:
    """Return how the part between hosts was computed."""
    if hosts == 1:
        return ("One host: NCCL's model of the scale-up links, without packets.",)
    if not isinstance(wire, PacketWire):
        return ("Ideal wire: NICs are busy for their bytes, no packets.",)
    words = [
        f"Between hosts: {count_text(wire.simulations)} packet simulations of flows of 2^n bytes; others interpolated."
    ]
    if wire.tree_rails < wire.rails and "double_tree" in wire.extrapolated_from:
        words.append(f"Trees on one of {wire.rails} rails, which share no cable.")
    for name, size in wire.extrapolated_from.items():
        words.append(f"Flows of {name.replace('_', ' ')} above {format_size(size)}: steady state extrapolated.")
    return tuple(words)


def parse_choices(text: str, known: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the names that a value of NCCL_ALGO or NCCL_PROTO allows: "Ring,Tree", or "^LL128" for all others.

    Raises ScenarioError for unknown names.
    """
    plain = {name.lower().replace("_", ""): name for name in known}
    names = []
    for word in text.removeprefix("^").split(","):
        key = word.strip().lower().replace("_", "")
        if key not in plain:
            raise ScenarioError(f'has an unknown name "{word.strip()}"', f"{where} {text}", ", ".join(known))
        names.append(plain[key])
    return tuple(name for name in known if (name in names) != text.startswith("^"))


def parse_algorithms(text: str) -> tuple[str, ...]:
    """Return the algorithms that a value of NCCL_ALGO allows."""
    return parse_choices(text, [name for name in ALGORITHMS if name != "p2p"], "--algo")


def parse_protocols(text: str) -> tuple[str, ...]:
    """Return the protocols that a value of NCCL_PROTO allows."""
    return parse_choices(text, PROTOCOLS, "--proto")
