"""Format `simai`."""

from gradwire.traces.formats.base import Format


class SimAi(Format):
    """Workload for SimAI, written by AICB."""

    kind = "simai"
    title = "SimAI text workload"
    module = "gradwire.traces.formats.simai"
    writes = True
    ranks = True
    offered = 30
