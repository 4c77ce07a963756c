"""Format `simai`."""

from gradwire.traces.formats.base import Format


class SimAi(Format):
    """What AICB writes for SimAI."""

    kind = "simai"
    title = "SimAI text workload"
    module = "gradwire.traces.formats.simai"
    writes = True
    ranks = True
    offered = 30
