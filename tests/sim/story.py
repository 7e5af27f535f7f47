"""A run in words: what went wrong when, who led, what was promised, and which promise broke."""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from .world import MICROSECONDS_PER_SECOND

LINES_MAX = 70
LINES_FIRST = 8
_A_FAULT = re.compile(r" fault \d+: ")

Event = tuple[int, tuple[Any, ...]]

_FAULTS = {
    "kill": "node {} is killed",
    "kill_leader": "node {}, the leader, is killed",
    "power_loss": "node {} loses power",
    "power_loss_leader": "node {}, the leader, loses power",
    "power_loss_all": "all nodes lose power",
    "crash_in_operation": "node {0} dies ({4}) right before {1} of {2}, in {3}",
    "graceful_stop": "node {} is asked to stop",
    "freeze": "node {} is frozen for {} ms",
    "wipe": "node {} dies; its disk is replaced by an empty one",
    "put_back": "node {} died {} ms ago; its disk is put back to what it was {} ms before that",
    "isolate": "node {} is cut off from {} for {} ms",
    "halves": "nodes {} and nodes {} are cut off from each other for {} ms",
    "one_way": "what node {} sends to node {} is lost for {} ms",
    "bridge": "nodes {} and nodes {} do not see each other for {} ms; one node sees all",
    "ring": "each node sees only its neighbours in the ring {} for {} ms",
    "flap": "the links of node {} come and go {} times",
    "slow_link": "what node {} sends to node {} takes {} ms longer, for {} ms",
    "reset": "the connection of nodes {} and {} breaks",
    "stranger": "node {} is told, as if by node {}, {} things that nobody can say",
    "slow_sync": "syncs of node {} take up to {} ms longer, for {} ms",
    "sync_failure": "the kernel of node {} drops dirty pages of the log; the next sync will fail",
    "hard_state_failure": "node {}: {} of {} fails (EIO)",
    "read_failure": "node {}: {} of {} fails (EIO)",
    "disk_full": "the disk of node {} is full for {} ms",
    "leader_disk_full": "the disk of node {}, which leads, is full for {} ms",
    "no_descriptors": "node {} may open {} more files, for {} ms",
    "bit_flip": "a bit flips on the disk of node {}: {} ({})",
    "file_damage": "while node {} is down its disk is damaged: {} ({})",
    "wall_clock_jump": "the wall clock of node {} leaps by {} ms",
    "wall_clock_strobe": "the wall clock of node {} leaps to and fro by {} ms, {} times",
    "clock_jump": "the monotonic clock of node {} leaps ahead by {} ms",
}
_EVENTS = {
    "open": "node {} starts ({}); its log ends with entry {}",
    "wiped": "node {} has an empty disk",
    "put back": "node {} has its disk of before",
    "forgotten": "node {} finds out that its disk was put back",
    "leader": "node {} leads term {}",
    "members": "node {} changes the nodes: voters {}, learners {}",
    "votes": "node {} votes for node {} in term {}",
    "hands over": "node {} asks node {} to take over",
    "truncate": "node {} cuts its log from entry {} on",
    "stopped": "node {} stops itself: {}",
    "violation": "BROKEN PROMISE {}: {}",
}
_ON_ENTRIES = {
    "append": "node {} appends entry {} of term {}",
    "commit": "node {} counts everything up to entry {} as committed",
    "acknowledged": "node {} acknowledges entry {} of term {}: {}",
}


class Story:
    """A listener of a world that collects its events for the story."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def __call__(self, now_us: int, parts: tuple[Any, ...]) -> None:
        if parts[0] != "send":
            self._events.append((now_us, parts))

    def lines(self) -> list[str]:
        """Return the lines in the order of time. Of a long story, only the beginning, the end, and every fault are
        returned.
        """
        relevant = _entries_of_violation(self._events)
        lines = list(_told(self._events, relevant))
        middle = [number for number in range(LINES_FIRST, len(lines)) if not _A_FAULT.search(lines[number])]
        left_out = middle[: max(0, len(lines) - LINES_MAX)]
        for number in reversed(left_out[1:]):
            del lines[number]
        if left_out:
            lines[left_out[0]] = f"{'…':>9}    {len(left_out)} lines left out"
        return lines


def _entries_of_violation(events: Iterable[Event]) -> Collection[int]:
    """Return the log entries that the violation is about: those it names, and those of its batches."""
    detail = next((parts[2] for _, parts in events if parts[0] == "violation"), "")
    entries = {int(number) for number in re.findall(r"(?:entry|entries|index|commits|counts) (?:from )?(\d+)", detail)}
    named = set(re.findall(r"(?:batch|transaction) \w+", detail))
    for _, parts in events:
        if parts[0] == "acknowledged" and named & set(re.findall(r"(?:batch|transaction) \w+", parts[4])):
            entries.add(parts[2])
    return entries


def _told(events: Iterable[Event], relevant: Collection[int]) -> Iterator[str]:
    acknowledged: list[tuple[int, int]] = []  # time and entry of those that are told together

    def told_together() -> Iterator[str]:
        if acknowledged:
            first, last = min(acknowledged), max(acknowledged)
            entries = sorted({entry for _, entry in acknowledged})
            which = f"entry {entries[0]} is" if len(entries) == 1 else f"entries {entries[0]} to {entries[-1]} are"
            yield _line(last[0], f"{which} acknowledged, from {first[0] / MICROSECONDS_PER_SECOND:.3f} s on")
            acknowledged.clear()

    last_told = (0, "")
    for now_us, parts in events:
        name, detail = parts[0], parts[1:]
        if name == "acknowledged" and detail[1] not in relevant:
            acknowledged.append((now_us, detail[1]))
            continue
        text = _words(name, detail, relevant)
        if text is None or (name == "down" and last_told[0] == now_us and f"node {detail[0]}" in last_told[1]):
            continue
        yield from told_together()
        yield _line(now_us, text)
        last_told = (now_us, text)
    yield from told_together()


def _words(name: str, detail: tuple[Any, ...], relevant: Collection[int]) -> str | None:
    """Return the words for an event; None if the story does not tell it."""
    if name == "fault":
        return f"fault {detail[0]}: {_FAULTS[detail[1]].format(*detail[2:])}"
    if name == "over":
        return f"fault {detail[0]} is over ({detail[1]})"
    if name == "down":
        how = {"power": "loses power", "kill": "dies", "stop": "has stopped"}[detail[1]]
        return f"node {detail[0]} {how}"
    if name == "role" and detail[1] == "candidate":
        return f"node {detail[0]} stands for election in term {detail[2] + 1}"
    if name == "role" and detail[1] == "follower":
        return f"node {detail[0]} is a follower again, in term {detail[2]}"
    if name == "stopped" and "Violation: " in detail[1]:
        return None  # the checkers' exception: told at the end
    if name in _ON_ENTRIES and detail[1] not in relevant:
        return None
    words = _EVENTS.get(name) or _ON_ENTRIES.get(name)
    return words.format(*detail) if words else None


def _line(now_us: int, text: str) -> str:
    return f"{now_us / MICROSECONDS_PER_SECOND:9.3f} s  {text}"
