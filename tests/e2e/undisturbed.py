"""Repeats a scenario whose judgement says nothing, because the machine, and not the broker, disturbed its nodes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.e2e.cluster_process import ClusterProcess

ATTEMPTS_MAX: Final = 4


class Disturbed(Exception):
    """An assertion failed, and something that the scenario did not do explains it."""


@contextmanager
def judged_unless(disturbed: Callable[[], str | None]) -> Iterator[None]:
    """Judge what is in the block. If an assertion fails and `disturbed` names a disturbance, Disturbed is raised.

    What has to hold in spite of the disturbance is asserted outside.
    """
    try:
        yield
    except AssertionError as exc:
        if why := disturbed():
            raise Disturbed(why) from exc
        raise


def undisturbed(scenario: Callable[[Path], None], directory: Path) -> None:
    """Run the scenario in a directory of its own; run it again while it is Disturbed, at most four times in all.

    The last disturbance is raised, so that a scenario that is never judged fails."""
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            return scenario(directory / f"attempt{attempt}")
        except Disturbed:
            if attempt == ATTEMPTS_MAX:
                raise


def terms(cluster: ClusterProcess) -> set[tuple[int, int | None]]:
    """Return the terms and leaders that the nodes know."""
    return {(status["term"], status["leader_id"]) for node in cluster.alive() if (status := node.status())}
