"""Colours and dashes of runs and parts, the same in pictures and on pages; in dark their lighter relatives.

The colours are Okabe and Ito's, four of them darker, so that each has a contrast of 3 to white: they are distinct for
colour-blind readers. Runs also differ in their dashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradwire.analysis.breakdown.breakdown import PARTS

NAMES = (*(f"c{number}" for number in range(8)), "ink", "dim", "grey", "pale")
_RUNS = "#0072b2 #c98500 #009e73 #b8558f #3494cd #d55e00 #8c8c8c #1c1c1c"
LIGHT = dict(zip(NAMES, f"{_RUNS} #1c1c1c #595959 #8c8c8c #c9d1d9".split(), strict=True))
"""Colours on white, by name; those of runs are c0 to c7."""
_RUNS_IN_DARK = "#56b4e9 #f0b429 #2bc49a #e39ac6 #a9dcf8 #ff8a4c #a0a0a0 #f2f2f2"
DARK = dict(zip(NAMES, f"{_RUNS_IN_DARK} #e8e8e8 #b0b5ba #858b91 #4a525a".split(), strict=True))
"""The same on a dark page."""
COLOURS = tuple(LIGHT[f"c{number}"] for number in range(8))
"""Colours of runs on white, in their order."""
DASHES: tuple[tuple[float, ...], ...] = ((), (7, 4), (9, 3, 2, 3), (2, 3), (12, 4), (4, 2, 1, 2, 1, 2), (1, 3))
"""Pixels drawn and left out of a line of two pixels. Their number has no common divisor with the colours', so 56 curves
differ."""
PART_COLOURS = dict(zip(PARTS, "pale grey dim c3 c4 c0 c1 c5 ink".split(), strict=True))
"""Colours of the parts of an iteration."""
CAUSE_COLOURS: Mapping[str, str] = {
    "drops_tail": "c5",
    "drops_selective": "c4",
    "drops_loss": "c3",
    "drops_evicted": "c1",
    "drops_down": "ink",
    "drops_no_route": "c0",
    "retransmitted": "pale",
}
"""Colours of lost packets by cause, and of retransmissions."""


def colour_and_dash(runs: Sequence[tuple[object, object]], number: int) -> tuple[int, int]:
    """Return the numbers of colour and dashes of an entry; `runs` : of each entry its Result first.

    Jobs and traffic of one Result share its colour and differ in their dashes.
    """
    results = [id(result) for result, _ in runs]
    colour = list(dict.fromkeys(results)).index(results[number])
    return colour, colour + results[:number].count(results[number])


def style_sheet() -> str:
    """Return colours and dashes as variables of a page: --c0 and so on, --d0 and so on."""
    light, dark = (";".join(f"--{name}:{value}" for name, value in names.items()) for names in (LIGHT, DARK))
    dashes = ";".join(f"--d{number}:{' '.join(map(str, dash)) or 'none'}" for number, dash in enumerate(DASHES))
    return f':root,.paper{{{light};{dashes}}}\n:root[data-theme="dark"]{{{dark}}}\n'
