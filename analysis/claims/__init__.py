"""Claims: sentences of papers, each with what is run to see whether it holds, and the verdict computed from that.

    Claim (data) -> Cases -> runs (scenario under a policy with a seed) -> Results -> Measured -> Verdict -> page

`claim` says what a claim is made of; `policies` has DLCP's settings and those of everything it is held against, in one
place; `dlcp` (from `bursts`, `jobs` and `mechanisms`), `mlt`, `regimes` and `schedulers` hold the claims. `tolerance`
and `reducers` are about accuracy: their runs are trainings under the arms of `arms`, and intervals decide. `plan` makes
scenarios of claims, `store` keeps their Results and `judge` reads the verdict off; `page` and `draw` show it. Who
simulates and trains is the door's matter (`gradwire.reproduce`).
"""

from __future__ import annotations

from gradwire.analysis.claims.claim import Claim
from gradwire.scenarios.errors import ScenarioError

SETS = ("dlcp", "mlt", "regimes", "schedulers", "lee", "tolerance", "reducers", "mp2", "mipd", "slimdp", "loop")
LEARNED = ("tolerance", "reducers", "mp2", "mipd", "slimdp", "loop")
"""Sets whose runs are trainings: they want data, and more seeds."""


def claims_of(name: str, chosen: list[str] | None = None) -> list[Claim]:
    """The claims of a set, or those `chosen` by id. Raises `ScenarioError` for what is not there."""
    from importlib import import_module

    if name not in SETS:
        raise ScenarioError(f'no claims are called "{name}"', "reproduce", ", ".join(SETS))
    claims: list[Claim] = import_module(f"gradwire.analysis.claims.{name}").CLAIMS
    known = {claim.id.lower(): claim for claim in claims}
    for each in chosen or ():
        if each.lower() not in known:
            expected = ", ".join(claim.id for claim in claims)
            raise ScenarioError(f'no claim of {name} is called "{each}"', "--claim", expected)
    return [known[each.lower()] for each in chosen] if chosen else claims
