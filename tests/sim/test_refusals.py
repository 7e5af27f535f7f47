"""The checker of refusals accepts an honest node, and accuses one that has stored what it refused."""

import pytest

from raft.errors import NotLeader, Overloaded, RaftError, UnknownOutcome
from store.commands.transactions import Decide
from store.log.errors import DiskFull

from .checkers import Violation
from .checkers.refusals import Refusals

LIFE, COMMIT = (1, 4), Decide("t", "commit")


def test_what_was_asked_for_may_be_appended_once_each_time() -> None:
    checker = Refusals()
    checker.asked(LIFE, COMMIT)
    checker.asked(LIFE, COMMIT)
    checker.answered(LIFE, COMMIT, UnknownOutcome(""))
    checker.appended(LIFE, [COMMIT, COMMIT])
    with pytest.raises(Violation, match="refused_for_certain"):
        checker.appended(LIFE, [COMMIT])


@pytest.mark.parametrize("error", [NotLeader(2), Overloaded(""), DiskFull("allocate", "/data/log", 28, "full")])
def test_what_is_refused_for_certain_is_not_in_the_log(error: RaftError) -> None:
    for appended_first in (True, False):
        checker = Refusals()
        checker.asked(LIFE, COMMIT)
        checker.asked(LIFE, COMMIT)
        steps = [lambda: checker.answered(LIFE, COMMIT, error), lambda: checker.appended(LIFE, [COMMIT, COMMIT])]  # noqa: B023
        if appended_first:
            steps.reverse()
        steps[0]()
        with pytest.raises(Violation, match="refused_for_certain"):
            steps[1]()


def test_another_life_and_what_came_another_way_are_no_concern() -> None:
    checker = Refusals()
    checker.asked(LIFE, COMMIT)
    checker.answered(LIFE, COMMIT, Overloaded(""))
    checker.appended((1, 5), [COMMIT])
    checker.appended(LIFE, [Decide("t", "rollback")])
