"""Tests the checker of popped messages: each message belongs to one consumer until its time is over."""

import pytest

from tests.chaos.checkers.held_messages import HeldMessages
from tests.chaos.violations import Kind, Violations


class TestHeldMessages:
    @pytest.fixture
    def held(self, violations: Violations) -> HeldMessages:
        """Return a checker in which consumer a holds message 1 until 1,000 ms."""
        checker = HeldMessages(violations)
        checker.popped("a", 1, 0, 10, 1_000)
        return checker

    def test_it_comes_again_when_its_time_is_over(self, held: HeldMessages, violations: Violations) -> None:
        held.popped("b", 1, 1, 1_000, 3_000)
        held.held_until(1, 1, 5_000)
        held.popped("a", 1, 2, 5_000, 7_000)
        assert violations.counts == {}
        assert held.handed_out == 3

    def test_or_when_it_was_given_back(self, held: HeldMessages, violations: Violations) -> None:
        held.giving_back(1, 0)
        held.popped("b", 1, 1, 20, 3_000)
        assert violations.counts == {}

    def test_not_before(self, held: HeldMessages, violations: Violations) -> None:
        held.popped("b", 1, 1, 999, 3_000)
        assert violations.counts == {Kind.POPPED_TWICE: 1}

    def test_not_before_the_time_that_it_was_held_on_to(self, held: HeldMessages, violations: Violations) -> None:
        held.held_until(1, 0, 4_000)
        held.popped("b", 1, 1, 1_000, 5_000)
        assert violations.counts == {Kind.POPPED_TWICE: 1}

    def test_not_to_two_at_once(self, held: HeldMessages, violations: Violations) -> None:
        held.popped("b", 1, 0, 10, 1_000)
        assert violations.counts == {Kind.POPPED_TWICE: 1}

    def test_whichever_answer_arrives_first(self, held: HeldMessages, violations: Violations) -> None:
        held.popped("b", 2, 1, 999, 3_000)
        held.popped("a", 2, 0, 10, 1_000)
        assert violations.counts == {Kind.POPPED_TWICE: 1}
