"""Slots for checks under way to webhooks: a bounded number for each producer group, and for all groups together.

A webhook that hangs keeps its checks until their timeout. So a group has only a few of the slots. While its last check
has failed, it has one slot, to find out whether it answers again when the check is tried again.

However many webhooks hang, there is room for those that do not: groups whose last check has failed have half of the
slots together, and a quarter is kept for groups that have no check under way.
"""

from typing import Final

GROUP_SLOTS: Final = 8
"""Maximum number of checks of one producer group under way; only one while the check that ended last has failed."""
FAILURES_KEPT_MS: Final = 60_000
"""Milliseconds without a check after which the failure of a group's webhook is forgotten."""


class _Group:
    """A group with a check under way, or whose last check failed."""

    def __init__(self) -> None:
        self.out = 0
        self.failed = False
        self.again_at_ms = 0


class WebhookSlots:
    """Owns the slots and the ids of transactions whose check is under way. Use on the event loop only."""

    def __init__(self) -> None:
        self._out: set[str] = set()
        self._tries: set[str] = set()
        """Those of groups whose last check had failed."""
        self._groups: dict[str, _Group] = {}

    def __contains__(self, transaction_id: object) -> bool:
        return transaction_id in self._out

    def take(self, transaction_id: str, group: str, now_ms: int, slots: int) -> bool:
        """Take a slot for a check, of `slots` for all groups. Return False when there is none; otherwise `free` has to
        follow.
        """
        if transaction_id in self._out or len(self._out) >= slots:
            return False
        of_group = self._groups.get(group)
        if of_group is None:
            self._forget_failures(now_ms)
            of_group = self._groups[group] = _Group()
        if of_group.out >= GROUP_SLOTS or (of_group.failed and (of_group.out or now_ms < of_group.again_at_ms)):
            return False
        if of_group.out and len(self._out) >= slots - slots // 4:
            return False
        if of_group.failed:
            if len(self._tries) >= max(1, slots // 2):
                return False
            self._tries.add(transaction_id)
        of_group.out += 1
        self._out.add(transaction_id)
        return True

    def free(self, transaction_id: str, group: str, again_at_ms: int | None) -> None:
        """Free the slot of a check. Unless `again_at_ms` is None, the check failed and the group gets no check before
        that time.
        """
        self._out.discard(transaction_id)
        self._tries.discard(transaction_id)
        of_group = self._groups[group]
        of_group.out -= 1
        of_group.failed = again_at_ms is not None
        of_group.again_at_ms = again_at_ms or 0
        if not of_group.out and not of_group.failed:
            del self._groups[group]

    def _forget_failures(self, now_ms: int) -> None:
        """Forget the failures of groups that could have got a check long ago: they have none."""
        before_ms = now_ms - FAILURES_KEPT_MS
        for name in [name for name, each in self._groups.items() if not each.out and each.again_at_ms < before_ms]:
            del self._groups[name]
