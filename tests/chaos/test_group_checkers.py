"""Tests the checkers of recorded groups: an innocent history passes, and each broken rule is named."""

import pytest

from tests.chaos.checkers.attempts import Attempts
from tests.chaos.checkers.group_offsets import GroupOffsets
from tests.chaos.checkers.group_owners import SLACK_S, GroupOwners
from tests.chaos.group_records import (
    AnyRecord,
    Assigned,
    Begun,
    Committed,
    Ended,
    GaveBack,
    GivingBack,
    ReadOffsets,
    SessionOver,
    Spot,
    Started,
    Stood,
)
from tests.chaos.reads import TopicQueue
from tests.chaos.violations import Kind, Violations

GROUP = "g"
QUEUE, OTHER, RETRIES = ("t", 0), ("t", 1), ("%RETRY%g", 0)
SESSION_MS = 3_000
SESSION_S = SESSION_MS / 1000


class Story:
    """Builds records with a clock that advances by 10 ms per record; `wait` lets more time pass."""

    def __init__(self) -> None:
        self.records: list[AnyRecord] = []
        self.now_s = 100.0
        self._calls = 0

    def at(self) -> float:
        self.now_s += 0.01
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def joins(self, member: str, generation: int, *places: TopicQueue, slots: int = 1) -> None:
        self.records.append(Started(member=member, at_s=self.at(), session_timeout_ms=SESSION_MS, slots=slots))
        self.beats(member, generation, *places)

    def beats(self, member: str, generation: int, *places: TopicQueue) -> None:
        sent_at_s = self.at()
        told = Assigned(member=member, at_s=self.at(), sent_at_s=sent_at_s, generation=generation, places=list(places))
        self.records.append(told)

    def told_over(self, member: str) -> None:
        self.records.append(SessionOver(member=member, at_s=self.at()))

    def commits(self, member: str, generation: int, offset: int, place: TopicQueue = QUEUE) -> None:
        sent_at_s = self.at()
        commit = Committed(
            member=member, at_s=self.at(), sent_at_s=sent_at_s, generation=generation, offsets=[(*place, offset)]
        )
        self.records.append(commit)

    def reads(self, member: str, *offsets: Spot) -> None:
        sent_at_s = self.at()
        self.records.append(ReadOffsets(member=member, at_s=self.at(), sent_at_s=sent_at_s, offsets=list(offsets)))

    def handles(
        self,
        member: str,
        offset: int,
        place: TopicQueue = QUEUE,
        *,
        attempt: int = 0,
        origin: Spot | None = None,
        number: int | None = None,
        done: bool = True,
    ) -> None:
        self._calls += 1
        begun = Begun(
            member=member,
            at_s=self.at(),
            call=self._calls,
            topic=place[0],
            queue=place[1],
            offset=offset,
            message_id=f"id{offset}",
            number=offset if number is None else number,
            attempt=attempt,
            origin=origin,
        )
        self.records += [begun, Ended(member=member, at_s=self.at(), call=self._calls, done=done)]

    def gives_back(self, member: str, *spots: Spot, acknowledged: bool = True) -> None:
        self.records.append(GivingBack(member=member, at_s=self.at(), spots=list(spots)))
        if acknowledged:
            self.records.append(GaveBack(member=member, at_s=self.at(), spots=list(spots)))

    def stands(self, member: str, seconds: float, *, stopped: bool = True) -> None:
        from_s = self.at()
        self.wait(seconds)
        self.records.append(Stood(member=member, at_s=self.now_s, from_s=from_s, stopped=stopped))


@pytest.fixture
def story() -> Story:
    return Story()


class TestOffsets:
    @pytest.fixture
    def checker(self, violations: Violations) -> GroupOffsets:
        return GroupOffsets(GROUP, violations)

    def test_an_innocent_history(self, story: Story, checker: GroupOffsets, violations: Violations) -> None:
        story.joins("a", 1, QUEUE)
        story.handles("a", 0)
        story.handles("a", 1, done=False)
        story.gives_back("a", (*QUEUE, 1))
        story.commits("a", 1, 2)
        story.handles("a", 2)  # not committed: it comes again
        story.joins("b", 2, QUEUE)
        story.reads("b", (*QUEUE, 2))
        story.handles("b", 2)
        story.commits("b", 2, 3)
        checker.judge(story.records)
        checker.judge_node("node 1", {QUEUE: 3})
        assert violations.counts == {}
        assert (checker.calls, checker.commits, checker.progress.redelivered) == (4, 2, 1)

    def test_a_commit_that_goes_back(self, story: Story, checker: GroupOffsets, violations: Violations) -> None:
        story.joins("a", 1, QUEUE)
        story.handles("a", 0)
        story.handles("a", 1)
        story.commits("a", 1, 2)
        story.commits("a", 1, 1)
        checker.judge(story.records)
        assert violations.counts == {Kind.OFFSET_WENT_BACK: 1}

    def test_commits_under_way_at_the_same_time_may_come_in_any_order(
        self, story: Story, checker: GroupOffsets, violations: Violations
    ) -> None:
        story.joins("a", 1, QUEUE)
        story.handles("a", 0)
        story.handles("a", 1)
        for offset, sent_at_s, at_s in ((2, 200.0, 200.2), (1, 200.1, 200.3)):
            spots = [(*QUEUE, offset)]
            commit = Committed(member="a", at_s=at_s, sent_at_s=sent_at_s, generation=1, offsets=spots)
            story.records.append(commit)
        checker.judge(story.records)
        assert violations.counts == {}

    @pytest.mark.parametrize("offsets", [[], [(*QUEUE, 1)]])
    def test_a_read_of_what_was_before(
        self, story: Story, checker: GroupOffsets, violations: Violations, offsets: list[Spot]
    ) -> None:
        story.joins("a", 1, QUEUE)
        story.handles("a", 0)
        story.handles("a", 1)
        story.commits("a", 1, 2)
        story.reads("a", *offsets)
        checker.judge(story.records)
        assert violations.counts == {Kind.OFFSET_WENT_BACK: 1}

    @pytest.mark.parametrize("offsets", [{}, {QUEUE: 0}])
    def test_a_node_that_has_less_in_the_end(
        self, story: Story, checker: GroupOffsets, violations: Violations, offsets: dict[TopicQueue, int]
    ) -> None:
        story.joins("a", 1, QUEUE)
        story.handles("a", 0)
        story.commits("a", 1, 1)
        checker.judge(story.records)
        checker.judge_node("node 1", offsets)
        assert violations.counts == {Kind.OFFSET_WENT_BACK: 1}

    def test_a_commit_that_passes_what_nobody_handled(
        self, story: Story, checker: GroupOffsets, violations: Violations
    ) -> None:
        story.joins("a", 1, QUEUE)
        story.handles("a", 0)
        story.handles("a", 1, done=False)
        story.commits("a", 1, 2)
        checker.judge(story.records)
        assert violations.counts == {Kind.GROUP_SKIP: 1}

    def test_a_message_that_was_handled_after_its_commit(
        self, story: Story, checker: GroupOffsets, violations: Violations
    ) -> None:
        story.joins("a", 1, QUEUE)
        story.commits("a", 1, 1)
        story.handles("a", 0)
        checker.judge(story.records)
        assert violations.counts == {Kind.GROUP_SKIP: 1}

    def test_a_node_that_is_beyond_what_was_handled(
        self, story: Story, checker: GroupOffsets, violations: Violations
    ) -> None:
        story.joins("a", 1, QUEUE)
        story.handles("a", 0)
        checker.judge(story.records)
        checker.judge_node("node 1", {QUEUE: 2})
        assert violations.counts == {Kind.GROUP_SKIP: 1}

    def test_a_later_session_that_handles_what_is_committed(
        self, story: Story, checker: GroupOffsets, violations: Violations
    ) -> None:
        story.joins("a", 1, QUEUE)
        story.handles("a", 0)
        story.commits("a", 1, 1)
        story.joins("b", 2, QUEUE)
        story.handles("b", 0)
        checker.judge(story.records)
        assert violations.counts == {Kind.HANDLED_AGAIN: 1}

    def test_a_session_that_began_before_may_not_know(
        self, story: Story, checker: GroupOffsets, violations: Violations
    ) -> None:
        story.joins("a", 1, QUEUE)
        story.joins("b", 2, QUEUE)
        story.handles("b", 0)
        story.commits("b", 2, 1)
        story.handles("a", 0)
        checker.judge(story.records)
        assert violations.counts == {}

    def test_whoever_joins_again_is_a_later_session(
        self, story: Story, checker: GroupOffsets, violations: Violations
    ) -> None:
        story.joins("a", 1, QUEUE)
        story.joins("b", 2, QUEUE)
        story.handles("b", 0)
        story.commits("b", 2, 1)
        story.told_over("a")
        story.beats("a", 3, QUEUE)
        story.handles("a", 0)
        checker.judge(story.records)
        assert violations.counts == {Kind.HANDLED_AGAIN: 1}


class TestOwners:
    @staticmethod
    def judge(story: Story, violations: Violations) -> dict[Kind, int]:
        GroupOwners(GROUP, violations).judge(story.records)
        return dict(violations.counts)

    def test_an_innocent_history(self, story: Story, violations: Violations) -> None:
        story.joins("a", 1, QUEUE, OTHER)
        story.handles("a", 0)
        story.joins("b", 2, OTHER)
        story.handles("a", 0, OTHER)  # it has not heard of that yet
        story.beats("a", 2, QUEUE)
        story.handles("b", 0, OTHER)
        story.commits("a", 2, 1)
        story.commits("b", 2, 1, OTHER)
        story.wait(SESSION_S - 0.2)
        story.handles("a", 1)
        assert self.judge(story, violations) == {}

    def test_two_owners_in_a_generation(self, story: Story, violations: Violations) -> None:
        story.joins("a", 1, QUEUE)
        story.joins("b", 1, QUEUE)
        assert self.judge(story, violations) == {Kind.NOT_OWNER: 1}

    def test_a_commit_of_a_former_generation(self, story: Story, violations: Violations) -> None:
        story.joins("a", 1, QUEUE)
        story.joins("b", 2, OTHER)
        story.commits("a", 1, 0)
        assert self.judge(story, violations) == {Kind.NOT_OWNER: 1}

    def test_a_commit_of_another_members_queue(self, story: Story, violations: Violations) -> None:
        story.joins("a", 1, QUEUE)
        story.commits("a", 1, 0, OTHER)
        assert self.judge(story, violations) == {Kind.NOT_OWNER: 1}

    def test_a_queue_that_nobody_assigned(self, story: Story, violations: Violations) -> None:
        story.joins("a", 1, QUEUE)
        story.handles("a", 0, OTHER)
        assert self.judge(story, violations) == {Kind.NOT_OWNER: 1}

    def test_a_call_after_the_queue_was_taken_away(self, story: Story, violations: Violations) -> None:
        story.joins("a", 1, QUEUE, OTHER)
        story.beats("a", 2, OTHER)
        story.wait(2 * SLACK_S)
        story.handles("a", 0)
        assert self.judge(story, violations) == {Kind.NOT_OWNER: 1}

    def test_a_call_after_it_was_told_that_its_session_is_over(self, story: Story, violations: Violations) -> None:
        story.joins("a", 1, QUEUE)
        story.told_over("a")
        story.wait(2 * SLACK_S)
        story.handles("a", 0)
        story.beats("a", 3, QUEUE)
        story.handles("a", 0)
        assert self.judge(story, violations) == {Kind.NOT_OWNER: 1}

    def test_a_call_after_the_session_by_its_own_clock(self, story: Story, violations: Violations) -> None:
        story.joins("a", 1, QUEUE)
        story.wait(SESSION_S + 2 * SLACK_S)
        story.handles("a", 0)
        assert self.judge(story, violations) == {Kind.NOT_OWNER: 1}

    def test_a_process_may_be_stopped_between_its_look_at_the_clock_and_one_call(
        self, story: Story, violations: Violations
    ) -> None:
        story.joins("a", 1, QUEUE)
        story.stands("a", 2 * SESSION_S)
        story.handles("a", 0)
        assert self.judge(story, violations) == {}

    def test_but_not_for_two(self, story: Story, violations: Violations) -> None:
        story.joins("a", 1, QUEUE)
        story.stands("a", 2 * SESSION_S)
        story.handles("a", 0)
        story.handles("a", 1)
        assert self.judge(story, violations) == {Kind.NOT_OWNER: 1}

    def test_threads_may_begin_one_each(self, story: Story, violations: Violations) -> None:
        story.joins("a", 1, QUEUE, slots=2)
        story.stands("a", 2 * SESSION_S)
        for offset in range(3):
            story.handles("a", offset)
        assert self.judge(story, violations) == {Kind.NOT_OWNER: 1}

    def test_a_loop_that_stood_excuses_nothing(self, story: Story, violations: Violations) -> None:
        story.joins("a", 1, QUEUE)
        story.stands("a", 2 * SESSION_S, stopped=False)
        story.handles("a", 0)
        assert self.judge(story, violations) == {Kind.NOT_OWNER: 1}


class TestAttempts:
    ORIGIN = (*QUEUE, 7)

    def judge(self, story: Story, violations: Violations, dead: tuple[int, ...] = ()) -> dict[Kind, int]:
        checker = Attempts(GROUP, 2, violations)
        checker.judge(story.records)
        checker.judge_dead(dead)
        return dict(violations.counts)

    def given_back_twice(self, story: Story) -> None:
        story.handles("a", 7, number=7, done=False)
        story.gives_back("a", self.ORIGIN, acknowledged=False)
        story.handles("b", 0, RETRIES, attempt=1, origin=self.ORIGIN, number=7, done=False)
        story.gives_back("b", (*RETRIES, 0))
        story.handles("b", 1, RETRIES, attempt=2, origin=self.ORIGIN, number=7, done=False)

    def test_an_innocent_history(self, story: Story, violations: Violations) -> None:
        self.given_back_twice(story)
        story.handles("a", 1, RETRIES, attempt=2, origin=self.ORIGIN, number=7, done=False)  # once more: a crash
        story.gives_back("a", (*RETRIES, 1))
        assert self.judge(story, violations, dead=(7,)) == {}

    def test_an_attempt_that_does_not_count(self, story: Story, violations: Violations) -> None:
        self.given_back_twice(story)
        story.gives_back("b", (*RETRIES, 1))
        story.handles("b", 2, RETRIES, attempt=2, origin=self.ORIGIN, number=7)
        assert self.judge(story, violations) == {Kind.RETURNED: 1}

    def test_an_attempt_too_many(self, story: Story, violations: Violations) -> None:
        self.given_back_twice(story)
        story.gives_back("b", (*RETRIES, 1))
        story.handles("b", 2, RETRIES, attempt=3, origin=self.ORIGIN, number=7)
        assert self.judge(story, violations) == {Kind.RETURNED: 1}

    def test_an_attempt_that_was_left_out(self, story: Story, violations: Violations) -> None:
        story.handles("a", 7, number=7, done=False)
        story.gives_back("a", self.ORIGIN)
        story.handles("b", 0, RETRIES, attempt=2, origin=self.ORIGIN, number=7)
        assert self.judge(story, violations) == {Kind.RETURNED: 1}

    def test_an_attempt_after_it_was_processed(self, story: Story, violations: Violations) -> None:
        story.handles("a", 7, number=7)
        story.handles("b", 0, RETRIES, attempt=1, origin=self.ORIGIN, number=7)
        assert self.judge(story, violations) == {Kind.RETURNED: 1}

    def test_an_attempt_without_an_origin(self, story: Story, violations: Violations) -> None:
        story.handles("b", 0, RETRIES, attempt=1, number=7)
        assert self.judge(story, violations) == {Kind.RETURNED: 1}

    def test_dead_before_its_last_attempt(self, story: Story, violations: Violations) -> None:
        story.handles("a", 7, number=7, done=False)
        story.gives_back("a", self.ORIGIN)
        assert self.judge(story, violations, dead=(7,)) == {Kind.RETURNED: 1}
