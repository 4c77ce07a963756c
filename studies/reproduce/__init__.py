"""Claims: sentences of papers, each with the runs that test it and a computed verdict.

    Claim (data) -> Cases -> runs (scenario under a policy with a seed) -> Results -> Measured -> Verdict -> page

`claims` and `settings.toml` hold the claims by set and their settings; `policies.toml` and `arms.toml` hold what they
compare: DLCP, its baselines, and arms of training runs, which intervals judge. `run_plan` makes scenarios of claims,
`run_store` stores their Results, and `verdicts` judges them; `claims_page` and `plots` present them. `runner` simulates
and trains.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.scenarios.advice import nearest
from gradwire.scenarios.errors import ScenarioError
from gradwire.studies.reproduce.claim import Claim

SETS = ("dlcp", "mlt", "regimes", "schedulers", "lee", "tolerance", "reducers", "mp2", "mipd", "slimdp", "loop")
TRAINING_SETS = ("tolerance", "reducers", "mp2", "mipd", "slimdp", "loop")
"""Sets whose runs are training runs: they need data, and more seeds."""


def claims_of(names: Sequence[str], chosen: Sequence[str] = ()) -> list[Claim]:
    """Return the claims of sets, or those `chosen` by id. Raises `ScenarioError` for unknown names."""
    from gradwire.studies.reproduce.claim_files import read_claims

    for name in names:
        if name not in SETS:
            raise ScenarioError(
                f'no set of claims is named "{name}"', "reproduce", ", ".join(SETS) + nearest(name, SETS)
            )
    claims = [claim for name in dict.fromkeys(names) for claim in read_claims(name)]
    known = {claim.id.lower(): claim for claim in claims}
    for wanted_id in chosen:
        if wanted_id.lower() not in known:
            expected = ", ".join(claim.id for claim in claims) + nearest(
                wanted_id.upper(), [each.id for each in claims]
            )
            raise ScenarioError(f'no claim of {", ".join(names)} has the id "{wanted_id}"', "--claim", expected)
    return [known[wanted_id.lower()] for wanted_id in chosen] if chosen else list(known.values())
