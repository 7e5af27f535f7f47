"""Run a mutant seed after seed until a checker accuses it, and check that the real parts are not accused."""

import traceback
from functools import cache
from typing import NamedTuple

from tests.sim.outcome import Outcome
from tests.sim.plan import Edits
from tests.sim.run import run_safe
from tests.sim.variant import SAFE, Variant

_SLIPS = ("AttributeError", "NameError", "NotImplementedError", "TypeError", "UnboundLocalError")


class Hunt(NamedTuple):
    """The result of a hunt. `caught_by` names the invariant that did not hold, or is None; `slip` says that the mutant
    does not even run.
    """

    mutant: str
    seeds: int
    caught_by: str | None
    seed: int
    detail: str
    slip: bool = False


def hunt(variant: Variant, first_seed: int, seeds_max: int) -> Hunt:
    """Run the variant from `first_seed` on, until it is caught or `seeds_max` seeds have seen nothing.

    A seed at which the real nodes fail too says nothing about the mutant, and is passed over.
    """
    for tried, seed in enumerate(range(first_seed, first_seed + seeds_max), start=1):
        outcome = _run(seed, variant, variant.edits)
        if outcome.violation is not None and (variant is SAFE or _is_innocent(seed, variant.edits)):
            return Hunt(variant.name, tried, outcome.accuser, seed, outcome.detail, _is_slip(outcome))
    return Hunt(variant.name, seeds_max, None, first_seed + seeds_max - 1, "")


@cache
def _is_innocent(seed: int, edits: Edits) -> bool:
    return _run(seed, SAFE, edits).violation is None


def _run(seed: int, variant: Variant, edits: Edits) -> Outcome:
    try:
        return run_safe(seed, variant, edits=edits)
    except Exception:
        return Outcome(seed, violation="error", detail=traceback.format_exc())


def _is_slip(outcome: Outcome) -> bool:
    """Return whether the mutant is merely wrong Python, which breaks at once and proves nothing."""
    return outcome.violation == "error" or (
        outcome.violation == "node_stopped" and any(f"{name}:" in outcome.detail for name in _SLIPS)
    )
