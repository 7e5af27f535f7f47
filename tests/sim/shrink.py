"""Make a failing plan smaller while it fails in the same way."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from .outcome import Outcome
from .plan import LOAD_US, Edits

RERUNS_MAX = 150
NODES_CHOICES = (1, 3)
ACTIONS_FIRST = 256


@dataclass
class Shrunk:
    """The smallest plan found, and its `outcome`: the same violation as without the edits."""

    edits: Edits
    outcome: Outcome
    reruns: int


def shrink(
    failed: Outcome, run: Callable[[Edits], Outcome], reruns_max: int = RERUNS_MAX, edits: Edits | None = None
) -> Shrunk:
    """Shrink by delta debugging over the faults of a plan, and over its length, nodes, links and load.

    `run(edits)` runs the seed again. Leaving a part out changes everything after it, so a smaller plan that does not
    fail proves nothing; one that fails does. Makes at most `reruns_max` runs.
    """
    search = _Search(failed, run, reruns_max, edits or Edits())
    search.leave_out_what_did_not_happen()
    search.leave_out_faults()
    search.try_all(replace(search.best.edits, nodes=nodes) for nodes in NODES_CHOICES if nodes < failed.nodes)
    search.try_all([replace(search.best.edits, calm_links=True)])
    if "purges: seed" in failed.met:
        search.try_all([replace(search.best.edits, no_purges=True)])
    search.shorten()
    search.do_less()
    search.leave_out_faults()
    return search.best


class _Search:
    def __init__(self, failed: Outcome, run: Callable[[Edits], Outcome], reruns_max: int, edits: Edits) -> None:
        self._run, self._reruns_max = run, reruns_max
        self._accuser = failed.accuser
        self.best = Shrunk(edits, failed, 0)

    def fails(self, edits: Edits) -> bool:
        """Return whether the plan with those edits fails in the same way. If it does, the edits are the best so far."""
        if self.best.reruns == self._reruns_max:
            return False
        outcome = self._run(edits)
        self.best.reruns += 1
        if outcome.accuser != self._accuser:
            return False
        self.best.edits, self.best.outcome = edits, outcome
        return True

    def try_all(self, candidates: Sequence[Edits] | Iterator[Edits]) -> None:
        """Try the edits in turn and take the first that fails."""
        any(self.fails(edits) for edits in candidates)

    def leave_out_what_did_not_happen(self) -> None:
        self.fails(replace(self.best.edits, only_faults=self.best.outcome.faults, until_ms=self._end_ms()))

    def leave_out_faults(self) -> None:
        """Leave out halves, then quarters and so on, until no single fault can be left out. The last faults go first,
        since the run up to them stays as it was.
        """
        faults = list(self.best.outcome.faults)
        if self.best.edits.only_faults not in (None, self.best.outcome.faults):
            self.fails(replace(self.best.edits, only_faults=self.best.outcome.faults))
        size = max(1, (len(faults) + 1) // 2)
        while faults:
            for begin in reversed(range(0, len(faults), size)):
                fewer = faults[:begin] + faults[begin + size :]
                if self.fails(replace(self.best.edits, only_faults=tuple(fewer), until_ms=self._end_ms())):
                    break
            else:
                if size == 1:
                    return
                size = (size + 1) // 2
                continue
            faults = [number for number in fewer if number in self.best.outcome.faults]
            size = min(size, max(1, (len(faults) + 1) // 2))

    def shorten(self) -> None:
        """Halve the load up to three times, for violations that show only at the end."""
        for _ in range(3):
            until_ms = (self.best.edits.until_ms or LOAD_US // 1000) // 2
            if not self.fails(replace(self.best.edits, until_ms=until_ms)):
                return

    def do_less(self) -> None:
        actions = ACTIONS_FIRST
        while actions and self.fails(replace(self.best.edits, actions=actions, until_ms=self._end_ms())):
            actions //= 2

    def _end_ms(self) -> int | None:
        """Return the time of the violation: nothing after it is needed."""
        end_ms = self.best.outcome.now_us // 1000 + 1
        return end_ms if end_ms < LOAD_US // 1000 else self.best.edits.until_ms
