"""Counts commands that were proposed in vain, by the reason."""

import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from cluster.problems import problem_of
from raft.errors import NotLeader

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")


class ProposalRefusals:
    """Owns the counts of one node. Use on the event loop only."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def note(self, error: Exception) -> None:
        """Count a command that ended with `error`, under the code with which its client is answered."""
        problem = problem_of(error)
        code = "not_leader" if isinstance(error, NotLeader) else "internal" if problem is None else problem.code
        self._counts[code] = self._counts.get(code, 0) + 1

    def metrics(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "keelmq_proposals_refused",
            "Commands proposed here that were refused or have an unknown outcome, by code",
            labels=["code"],
        )
        for code, count in sorted(self._counts.items()):
            family.add_metric([code], count)
        yield family


class _Owner(Protocol):
    refusals: ProposalRefusals


OwnerT = TypeVar("OwnerT", bound=_Owner)


def counting_refusals(
    propose: Callable[Concatenate[OwnerT, Parameters], Awaitable[Value]],
) -> Callable[Concatenate[OwnerT, Parameters], Coroutine[Any, Any, Value]]:
    """Wrap a method that proposes a command, so that the errors that it raises are counted in `refusals`."""

    @functools.wraps(propose)
    async def counted(self: OwnerT, /, *arguments: Parameters.args, **named: Parameters.kwargs) -> Value:
        try:
            return await propose(self, *arguments, **named)
        except Exception as error:
            self.refusals.note(error)
            raise

    return counted
