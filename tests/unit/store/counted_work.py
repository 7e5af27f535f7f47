"""Counts the work of a call without a clock: the bytecode instructions of the broker's functions that it executes."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def work_of(call: Callable[[], object]) -> int:
    """Return the number of instructions that the call executes. What C functions do within counts as one."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()  # what it finds may have finalizers
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return count
