"""SIGTERM and SIGINT end a consumer's `run` in order, unless the application handles these signals itself."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from keelmq.line_log import log

_UNHANDLED: Final = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
"""Default handlers of the signals in a Python program that has not set its own."""


class _Handled:
    """Holds the functions that one event loop calls at a signal, and the signals handled for it."""

    def __init__(self) -> None:
        self.stops: list[Callable[[], object]] = []
        self.signals: list[signal.Signals] = []


_handled: Final[dict[asyncio.AbstractEventLoop, _Handled]] = {}


@contextmanager
def stopped_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` at the first SIGTERM or SIGINT within the block; the second one has its default effect.

    This works only in the main thread, only for signals that still have Python's own handlers, and only on an event
    loop with signal support. If several blocks are active on one event loop, every `stop` is called.
    """
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = _handled.get(loop)
    if handled is None:
        handled = _handled[loop] = _Handled()
        for number, unhandled in _UNHANDLED.items():
            if signal.getsignal(number) == unhandled:
                _handle(loop, number, handled)
    handled.stops.append(stop)
    try:
        yield
    finally:
        handled.stops.remove(stop)
        if not handled.stops:
            _let_go(loop, handled)
            del _handled[loop]


def _handle(loop: asyncio.AbstractEventLoop, number: signal.Signals, handled: _Handled) -> None:
    try:
        loop.add_signal_handler(number, _on_signal, loop, number)
    except (NotImplementedError, RuntimeError, ValueError) as exc:
        log.debug("%s is not handled here: %s", number.name, exc)
    else:
        handled.signals.append(number)


def _on_signal(loop: asyncio.AbstractEventLoop, number: signal.Signals) -> None:
    handled = _handled.get(loop)
    if handled is not None:
        log.info("%s: closing", number.name)
        _let_go(loop, handled)
        for stop in handled.stops:
            stop()


def _let_go(loop: asyncio.AbstractEventLoop, handled: _Handled) -> None:
    """Restore Python's own handlers."""
    while handled.signals:
        loop.remove_signal_handler(handled.signals.pop())
