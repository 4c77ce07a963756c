"""The profile of property tests in trials: that of `make test`, without shrinking."""

from __future__ import annotations

from hypothesis import Phase, settings

NAME = "mutation"

settings.register_profile(NAME, deadline=None, max_examples=25, phases=(Phase.explicit, Phase.generate))
