"""Declares the topology table `hpcc`, and reads its network from `topology.txt`, the format of the HPCC and ConWeave
simulators.

    nodes switches links            three numbers
    16 17 18                        the switches' numbers (on one or more lines); every other node is a host
    0 16 100Gbps 0.001ms 0.000000   one line per cable: its ends, rate, delay, probability of loss
    ...

The public code of HPCC (Li et al., SIGCOMM 2019) and ConWeave (Song et al., SIGCOMM 2023) reads this format. A missing
probability is 0. The first line gives the number of cables to read; anything after them is skipped, as in the
simulators. Nodes are numbered from 0 through hosts and switches together and keep their number: node 5 is "h5" if it is
a host and "s5" if it is a switch, so flow lists and overrides use the file's numbers.

SimAI's generator writes a longer first line, "nodes gpus-per-server NVLink-switches other-switches links GPU" [code:
gen_Topo_Template.py]. Hosts are then GPUs, consecutive ones of a server together, and their cables to NVLink switches,
the first ones of the second line, are scale-up ports, which carry traffic within the server only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.lazily import np
from gradwire.scenarios.schema.network.topology import CableFile
from gradwire.scenarios.units import UnitError, parse_decimal, parse_rate, parse_time, parse_whole
from gradwire.topology.cables import Cable, LinkSpec, Override
from gradwire.topology.network import Network, assemble
from gradwire.topology.topology_file import refuse_listed, rows_of

if TYPE_CHECKING:
    pass

HEADER = "nodes switches links, such as: 320 28 800"
SIMAI_HEADER = "nodes gpus-per-server NVLink-switches other-switches links GPU, such as: 48 8 4 12 96 H100"
ROW = "two nodes, rate, delay and loss, such as: 0 16 100Gbps 0.001ms 0.0"


class HpccTopology(CableFile):
    """A `topology.txt` of the HPCC and ConWeave simulators: "nodes switches links", the switches' numbers, then `src
    dst rate delay loss` per cable. Hosts are h<number>, switches s<number>; there is no `[link]`. SimAI's longer first
    line is read, too; its hosts are GPUs with NVLink inside servers."""

    kind: Literal["hpcc"]
    file: Annotated[str, Field(min_length=1)]
    """Relative to the scenario file."""

    def network(self, link: LinkSpec, overrides: Iterable[Override]) -> Network:
        return read_hpcc(self.file, overrides=overrides)


def read_hpcc(path: str | Path, *, overrides: Iterable[Override] = ()) -> Network:
    """Read a `topology.txt`: hosts h<number> and switches s<number> in ascending order of their numbers.

    Empty lines and text after # are skipped, and so is anything after the number of cables in the first line, such as
    the explanations in the simulators' own files, or more cables. A host with several cables (HPCC's own 320-host
    network) has as many network cards, see `gradwire.topology.multi_nic_hosts`. Rates are read as "100Gbps" or
    "100Gb/s", delays with any unit of time. SimAI's topologies are recognised by their first line.
    `overrides`: properties of single cables.

    Raises
    ------
    ScenarioError
        With all errors, each with its line: numbers that do not agree with the first line, nodes out of range,
        unreadable rates, delays and losses, and everything that `assemble` refuses.

    References
    ----------
    Li et al.: "HPCC: high precision congestion control", SIGCOMM 2019, and its public simulator.
    """
    path = Path(path)
    rows = rows_of(path, "a topology.txt")
    return _Reader(path, rows).network(overrides)


class _Reader:
    """A parser of one file; `mistakes` collects its errors."""

    def __init__(self, path: Path, rows: list[tuple[int, list[str]]]) -> None:
        self.path = path
        self.rows = rows
        self.mistakes: list[Mistake] = []
        self.gpus_per_server = 0
        """Of SimAI's files; 0 for others."""
        self.scale_up: set[int] = set()
        """Switches of NVLink."""

    def network(self, overrides: Iterable[Override]) -> Network:
        nodes, switches, links = self.header()
        numbers, rows = self.switches(nodes, switches)
        hosts = [node for node in range(nodes) if node not in numbers]
        ordered = sorted(numbers, key=lambda node: (node in self.scale_up, node))  # a host's scale-up port comes last
        index = {node: number for number, node in enumerate((*hosts, *ordered))}
        link_rows = rows[:links]
        cables = [cable for line, row in link_rows if (cable := self.cable(line, row, index)) is not None]
        if len(link_rows) != links:
            self.wrong(self.rows[0][0], f"announces {links} links, but {len(link_rows)} follow")
        self.refuse()
        machines = self.machines(len(hosts), cables, {index[node] for node in self.scale_up})
        self.refuse()
        names = [f"h{node}" for node in hosts], [f"s{node}" for node in ordered]
        network = assemble(
            *names, cables, title=self.path.stem, where=self.path.name, overrides=overrides, machines=machines
        )
        node_hosts = np.full(nodes, -1, dtype=np.int64)
        node_hosts[hosts] = np.arange(len(hosts))
        return replace(network, node_hosts=node_hosts)

    def header(self) -> list[int]:
        line, words = self.rows[0] if self.rows else (1, [])
        numbers = [parse_whole(word) for word in words]
        if len(words) == 6:
            return self.simai_header(line, words)
        if len(words) != 3 or None in numbers:
            self.wrong(line, "is not a valid first line", " ".join(words), HEADER)
            self.refuse()
        nodes, switches, links = (number for number in numbers if number is not None)
        if switches > nodes:
            self.wrong(line, "announces more switches than nodes", " ".join(words), HEADER)
        if nodes > 2 * len(self.rows):  # a list of them might not fit into memory
            self.wrong(line, f"announces {nodes} nodes, more than its cables have ends", " ".join(words), HEADER)
        self.refuse()
        return [nodes, switches, links]

    def simai_header(self, line: int, words: list[str]) -> list[int]:
        numbers = [parse_whole(word) for word in words[:5]]
        nodes, gpus, nvlink, others, links = (-1 if number is None else number for number in numbers)
        if None in numbers or gpus < 1 or nodes > 2 * len(self.rows) or nvlink + others >= nodes:
            self.wrong(line, "is not a valid first line", " ".join(words), SIMAI_HEADER)
        elif (nodes - nvlink - others) % gpus or nvlink not in (0, (nodes - nvlink - others) // gpus):
            hosts = nodes - nvlink - others
            what = f"has {hosts} GPUs and {nvlink} NVLink switches, {gpus} GPUs a server"
            self.wrong(line, what, " ".join(words), "whole servers, each with one NVLink switch, or none with any")
        self.refuse()
        self.gpus_per_server = gpus if nvlink else 0
        listed = [word for _, row in self.rows[1:] for word in row][:nvlink]
        self.scale_up = {number for word in listed if (number := parse_whole(word)) is not None}
        return [nodes, nvlink + others, links]

    def machines(self, hosts: int, cables: list[Cable], scale_up: set[int]) -> Ints | None:
        """Return the server of each GPU; None if the file has none. Each has one cable to its server's switch."""
        if not self.gpus_per_server:
            return None
        by_switch: dict[int, list[int]] = {}
        for a, b, *_ in cables:
            if b in scale_up:
                by_switch.setdefault(b, []).append(a)
        expected = [list(range(n, n + self.gpus_per_server)) for n in range(0, hosts, self.gpus_per_server)]
        if sorted(sorted(gpus) for gpus in by_switch.values()) != expected:
            what = "NVLink switches do not join the consecutive GPUs of a server, with one cable each"
            self.wrong(self.rows[0][0], what, None, f"GPUs 0 to {self.gpus_per_server - 1} at the first, and so on")
        return np.arange(hosts) // self.gpus_per_server

    def switches(self, nodes: int, count: int) -> tuple[set[int], list[tuple[int, list[str]]]]:
        """Return the switches' numbers, and the rows after them."""
        numbers: set[int] = set()
        seen = 0
        rest = self.rows[1:]
        while seen < count and rest:
            line, words = rest.pop(0)
            for word in words:
                node = self.node(line, word, nodes)
                if node in numbers:
                    self.wrong(line, "names a switch twice", word, "every switch once")
                numbers.update(() if node is None else (node,))
            seen += len(words)
        if seen != count:
            where = self.rows[1][0] if len(self.rows) > 1 else self.rows[0][0]
            self.wrong(where, f"lists {seen} switches", None, f"{count}, as in the first line")
        self.refuse()  # what follows would be misread
        return numbers, rest

    def node(self, line: int, word: str, nodes: int) -> int | None:
        number = parse_whole(word)
        if number is not None and number < nodes:
            return number
        self.wrong(line, "is not a node", word, f"a number from 0 to {nodes - 1}")
        return None

    def cable(self, line: int, words: list[str], index: dict[int, int]) -> Cable | None:
        if len(words) not in (4, 5):
            self.wrong(line, f"has {len(words)} entries", " ".join(words), ROW)
            return None
        before = len(self.mistakes)
        ends = [self.node(line, word, len(index)) for word in words[:2]]
        rate = self.value(line, parse_rate, words[2].replace("b/s", "bps"))
        latency = self.value(line, parse_time, words[3])
        loss = self.value(line, _probability, words[4]) if len(words) == 5 else 0.0
        if len(self.mistakes) > before:
            return None
        # a host comes first, so that its even link leads up, as in the generators
        a, b = sorted(index[node] for node in ends if node is not None)
        return Cable(a, b, rate, latency, loss)

    def value(self, line: int, parse: Callable[[str], Any], word: str) -> Any:
        try:
            return parse(word)
        except UnitError as error:
            self.wrong(line, error.what, word, error.expected)
            return None

    def wrong(self, line: int, what: str, value: object = None, expected: str = "") -> None:
        self.mistakes.append(Mistake(f"{self.path.name}: line {line}", what, value, expected))

    def refuse(self) -> None:
        refuse_listed(self.mistakes, self.path.name)


def _probability(word: str) -> float:
    number = parse_decimal(word)
    if number is None:
        raise UnitError("is not a number", "a probability such as 0.01")
    return float(number)
