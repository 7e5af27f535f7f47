"""Crash points let a service die as if the power had failed. Without SHOP_CRASH_AT they do nothing."""

import os
import signal
from collections import Counter

CRASH_AT = os.environ.get("SHOP_CRASH_AT", "")
"""`name:n`: the process kills itself with SIGKILL when it passes the point `name` for the n-th time. If the point has a
condition, it does so the first time from the n-th on at which the condition holds."""

_passed: Counter[str] = Counter()


def crash_point(name: str, *, when: bool = True) -> None:
    _passed[name] += 1
    point, _, count = CRASH_AT.partition(":")
    if when and name == point and _passed[name] >= int(count):
        os.kill(os.getpid(), signal.SIGKILL)
