"""The pause of a consumer's group, as the broker tells it: an operator has the broker hand out nothing to the group."""

import time

from keelmq import wire
from keelmq.line_log import log


class PauseWatch:
    """Keeps the pause of the group as it was told last, and logs when that changes."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.pause: wire.GroupPause | None = None

    @property
    def is_paused(self) -> bool:
        return self.pause is not None

    def told(self, pause: wire.GroupPause | None) -> bool:
        """Take over what an answer tells; return whether the group was paused or resumed since the last one."""
        changed = (pause is None) != (self.pause is None)
        self.pause = pause
        if changed and pause is not None:
            since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(pause.since_ms / 1000))
            by = pause.operator or pause.principal
            log.warning(
                "group %s is paused since %s%s%s: nothing is handled until it is resumed (keelmq group resume %s)",
                self._group,
                since,
                f" by {by}" if by else "",
                f", because of: {pause.reason}" if pause.reason else "",
                self._group,
            )
        elif changed:
            log.warning("group %s is resumed: it goes on where it was", self._group)
        return changed
