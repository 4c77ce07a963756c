"""`KernelFeatures` stores the results of a probe of kernel, user and machine, with the error of each missing
feature.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from gradwire.scenarios.json_data import Json

PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "unshare": "util-linux",
    "clang": "clang",
    "tcpdump": "tcpdump",
    "ethtool": "ethtool",
    "ping": "iputils-ping",
}
"""Commands and the Debian packages that contain them."""


@dataclass(frozen=True)
class KernelFeatures:
    """The results of a probe. In mappings to text, "" means that the feature works; any other text is the error.

    timer_late_us : lateness in microseconds of a sleep of one millisecond: median, 99 % and maximum; without processor
        idle states, if they can be disabled.
    awake : why idle states cannot be disabled (`gradwire.emu.system.cpu_idle`).
    reachable_bps : the highest of `probe.RATES` that one saturated htb port sustained; 0: none, -1: not tried.
    uml : the path of the virtual-time kernel, or "".
    virtual : True if this is that kernel.
    """

    release: str = ""
    machine: str = ""
    cores: int = 1
    root: bool = False
    virtual: bool = False
    namespaces: str = "not tried"
    qdiscs: Mapping[str, str] = field(default_factory=dict)
    classifiers: Mapping[str, str] = field(default_factory=dict)
    actions: Mapping[str, str] = field(default_factory=dict)
    nft_numgen: str = "not tried"
    nft_marks: str = "not tried"
    """error of nftables when it writes DSCP and ECN"""
    bpf: str = "not tried"
    tun: str = "not tried"
    congestion: tuple[str, ...] = ()
    tools: Mapping[str, str] = field(default_factory=dict)
    """commands and their versions; "" if missing"""
    timer_late_us: tuple[float, float, float] = (0.0, 0.0, 0.0)
    awake: str = "not tried"
    reachable_bps: int = -1
    uml: str = ""

    def has(self, kind: str, name: str) -> bool:
        """Return True if a "qdisc", "classifier", "action", "tool" or "congestion" control of this name works."""
        if kind == "tool":
            return bool(self.tools.get(name))
        if kind == "congestion":
            return name in self.congestion
        return self._error(kind, name) == ""

    def _error(self, kind: str, name: str) -> str:
        table = {"qdisc": self.qdiscs, "classifier": self.classifiers, "action": self.actions}[kind]
        return table.get(name, "not tried")

    def explain_missing(self, kind: str, name: str) -> str:
        """Return one line that explains why `has` returns False."""
        if kind == "tool":
            return f"command not found: {name} (package {PACKAGES.get(name, name)})"
        return f"this kernel has no {kind} {name} ({self._error(kind, name)})"

    def lacks(self, required: Iterable[tuple[str, str]]) -> list[str]:
        """Return why those of the `required` features, (kind, name), that are missing do not work."""
        return [self.explain_missing(kind, name) for kind, name in required if not self.has(kind, name)]

    @property
    def netem_works(self) -> bool:
        return self.has("qdisc", "netem") and self.has("qdisc", "clsact")

    def missing_packages(self) -> list[str]:
        return sorted({PACKAGES[name] for name, version in self.tools.items() if not version})

    def to_json(self) -> Json:
        return asdict(self)
