"""Who may have checks on their way to a webhook: a bounded number of each producer group, and of all together.

A webhook that hangs holds what it was given until its time is over. So a group has few slots of many, and as long as
its last check failed it has one, to find out whether it answers again, whenever that check is tried again.
"""

from typing import Final

GROUP_SLOTS: Final = 8
"""Checks of one producer group that are out at a time; one while the last one that ended has failed."""
FAILURES_KEPT_MS: Final = 60_000
"""It is forgotten that a group's webhook failed when nothing was to be asked for this long."""


class _Group:
    """A group with a check out, or whose last one failed."""

    def __init__(self) -> None:
        self.out = 0
        self.failed = False
        self.again_at_ms = 0


class WebhookSlots:
    """Loop-only. Transactions are in it while their check is out."""

    def __init__(self) -> None:
        self._out: set[str] = set()
        self._groups: dict[str, _Group] = {}

    def __len__(self) -> int:
        return len(self._out)

    def take(self, transaction_id: str, group: str, now_ms: int, slots: int) -> bool:
        """Whether the check may go out now, while `slots` of all groups may be out; `free` follows."""
        if transaction_id in self._out or len(self._out) >= slots:
            return False
        of_group = self._groups.get(group)
        if of_group is None:
            self._forget_failures(now_ms)
            of_group = self._groups[group] = _Group()
        if of_group.out >= GROUP_SLOTS or (of_group.failed and (of_group.out or now_ms < of_group.again_at_ms)):
            return False
        of_group.out += 1
        self._out.add(transaction_id)
        return True

    def free(self, transaction_id: str, group: str, again_at_ms: int | None) -> None:
        """The check is not out any more. Unless `again_at_ms` is None it failed, and the group is asked again then."""
        self._out.discard(transaction_id)
        of_group = self._groups[group]
        of_group.out -= 1
        of_group.failed = again_at_ms is not None
        of_group.again_at_ms = again_at_ms or 0
        if not of_group.out and not of_group.failed:
            del self._groups[group]

    def _forget_failures(self, now_ms: int) -> None:
        """Of groups that could have been asked again long ago: there is nothing to ask them."""
        before_ms = now_ms - FAILURES_KEPT_MS
        for name in [name for name, each in self._groups.items() if not each.out and each.again_at_ms < before_ms]:
            del self._groups[name]
