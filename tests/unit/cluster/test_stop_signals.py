"""A signal that stops the node is never lost, whenever it comes."""

import asyncio
import gc
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from cluster.broker import Broker
from cluster.process.config import NodeConfig
from cluster.serving import loop_factory, runs_again
from tests.unit.cluster.conftest import node_config

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def former_process() -> Iterator[None]:
    """Undo what serving does to the process."""
    former, threshold = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGHUP)}, gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)
    for number, handler in former.items():
        signal.signal(number, handler)


class StandIn:
    """Broker that has to be opened again at once, and is sent a signal while it is closed."""

    def __init__(self, sent: signal.Signals) -> None:
        self._sent = sent

    async def serve(self, stop: asyncio.Event, on_ready: Callable[[], None]) -> bool:
        on_ready()
        return not stop.is_set()

    def close(self) -> None:
        signal.raise_signal(self._sent)


@pytest.mark.parametrize("sent", SIGNALS)
@pytest.mark.parametrize("loop_step_ms_max", [0, 1_000_000])
def test_a_signal_while_the_node_is_opened_again_stops_it(
    tmp_path: Path, sent: signal.Signals, loop_step_ms_max: int
) -> None:
    config = node_config(tmp_path, loop_step_ms_max=loop_step_ms_max)

    def read_again() -> NodeConfig:
        return config

    stop, broker = asyncio.Event(), cast(Broker, StandIn(sent))
    with asyncio.Runner(loop_factory=loop_factory(config)) as runner:
        assert runs_again(runner, broker, stop, lambda: None, read_again)
        assert stop.is_set()
        assert not runs_again(runner, broker, stop, lambda: None, read_again)
