"""The soak: random scenarios, damaged files and damaged streams, tried until somebody stops it.

    python -m tests.soak --minutes 30             from the project's root; `--help` has the rest

Every source of cases is a module with a function `cases(seed)` that yields pairs (label, thunk) without end: the label
says how to get the same case again, the thunk answers with a word of `ANSWERS` and raises anything that is a failure.
A source is started anew with other seeds as long as the soak runs, in as many processes as it is given.

`schema` draws values from the JSON Schema of a scenario, `drawn` whole scenarios, whose files `scenario_files` writes;
`played` runs one through `check`, the engine and the oracle; `scenarios` is the source made of them, `uncompiled` the same
with the engine as plain Python: each scenario has other components, which need not be compiled. `damage` changes files;
`readers` and `results` read them. `agents` damages what agents hear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

Case = tuple[str, Callable[[], str]]
"""(label that reproduces it, thunk)"""
Source = Callable[[int], Iterator[Case]]
"""seed -> cases"""

ANSWERS = ("ok", "refused", "stalled", "cut")
"""ok: carried out, and found right. refused: one clear message. stalled: it says what waits for what. cut: it was ended
by the limit on time, and what there was by then was right."""
