"""Runs a node until it is told to stop.

Only `main` imports this module, and late: the broker takes thrice as long to import as what other commands need.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Final, NoReturn

import uvloop

from cluster import VERSION
from cluster.broker import Broker
from cluster.budgets.connection_limits import raise_limit_of_files
from cluster.process.addresses import ConfigError
from cluster.process.config import NodeConfig
from cluster.process.config_description import describe
from cluster.process.exit_codes import ExitCode
from cluster.process.join import joined
from cluster.process.logging_setup import set_log_level, set_up_logging
from cluster.process.loop_steps import MeasuredEventLoop
from cluster.service_manager.notify_socket import NotifySocket
from store.features import FEATURES
from store.log.errors import LogFailed

logger = logging.getLogger("keelmqd")

GC_THRESHOLD: Final = 10_000
"""Number of young objects that starts a collection. Requests make few cycles, and each collection stops the loop. The
time of one grows with the number of objects that it looks at."""


def run_node(config: NodeConfig, read_again: Callable[[], NodeConfig]) -> ExitCode:
    """Serve until SIGTERM or SIGINT. At SIGHUP, `read_again` returns the configuration as its sources have it then, or
    raises ConfigError. Raises StartupError before the node serves.
    """
    set_up_logging(config.log_level, config.log_format)
    logger.info("KeelMQ %s, which knows feature level %s, runs with %s", VERSION, FEATURES.describe(), describe(config))
    signal.signal(signal.SIGHUP, ignore_hangup)
    raise_limit_of_files()
    manager = NotifySocket.from_environment(os.environ)
    config = joined(config)
    open_broker = partial(Broker.open, config, end_at_once, on_outdated=end_outdated, manager=manager)
    broker = open_broker()
    stop = asyncio.Event()
    on_ready: Callable[[], None] = partial(announce, config)
    with asyncio.Runner(loop_factory=loop_factory(config)) as runner:
        while runs_again(runner, broker, stop, on_ready, read_again) and not stop.is_set():
            logger.info("starting again")
            on_ready = partial(logger.info, "serving again")
            broker = open_broker(former=broker)
    logger.info("stopped")
    manager.close()
    return ExitCode.STOPPED


def loop_factory(config: NodeConfig) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return a factory of the fast event loop, or for tests of the loop that measures its steps."""
    if config.loop_step_ms_max:
        return partial(MeasuredEventLoop, config.loop_step_ms_max)
    return uvloop.new_event_loop


def runs_again(
    runner: asyncio.Runner,
    broker: Broker,
    stop: asyncio.Event,
    on_ready: Callable[[], None],
    read_again: Callable[[], NodeConfig],
) -> bool:
    """Serve, close the broker, and return whether the node has to be opened again, as a received snapshot requires."""
    try:
        return runner.run(serve(broker, stop, on_ready, read_again))
    finally:
        close(broker)


async def serve(
    broker: Broker, stop: asyncio.Event, on_ready: Callable[[], None], read_again: Callable[[], NodeConfig]
) -> bool:
    """Serve until SIGTERM or SIGINT, or until the node has to be opened again. SIGHUP has files read again."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    hang_ups = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, hang_ups.set)
    reloads = asyncio.create_task(reload_at_hang_ups(hang_ups, broker, read_again))
    # The objects that exist now live as long as the process: no collection need look at them again.
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 250)
    try:
        return await broker.serve(stop, on_ready)
    finally:
        reloads.cancel()
        # While the node is opened again the loop stands, and forgets signals that come meanwhile.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())


async def reload_at_hang_ups(hang_ups: asyncio.Event, broker: Broker, read_again: Callable[[], NodeConfig]) -> None:
    """Take over the log level and TLS files at each SIGHUP. A mistake in the configuration is logged and changes
    nothing, as does a closed terminal, which is no reason to stop.
    """
    while True:
        await hang_ups.wait()
        hang_ups.clear()
        try:
            config = await asyncio.to_thread(read_again)  # it validates all options and the files that they name
        except ConfigError as error:
            logger.error("SIGHUP: the configuration is not used, and the log level stays: %s", error)
        except Exception:  # a bug must not end reloading
            logger.exception("SIGHUP: the configuration cannot be read, and the log level stays")
        else:
            set_log_level(config.log_level)
            # A warning, so that it is seen whatever the level is now.
            logger.warning("SIGHUP: the log level is %s; other options are read at the start only", config.log_level)
        try:
            await broker.look_at_certificates()
        except Exception:
            logger.exception("SIGHUP: the TLS files cannot be looked at")


def ignore_hangup(*_: object) -> None:
    """Handle a SIGHUP that comes before the node serves: its files are being read anyway."""
    logger.warning("SIGHUP is ignored: this node is starting")


def announce(config: NodeConfig) -> None:
    """Print the only line that a node writes to standard output."""
    admin_url = config.advertised_admin_url()
    administration = "" if admin_url is None else f"administration at {admin_url}, "
    print(
        f"keelmqd {VERSION}: node {config.node_id} of cluster {config.cluster_id!r} serves "
        f"{config.advertised_url()}, {administration}peers at {config.peer_address()}, data in "
        f"{config.data_dir}, pid {os.getpid()}",
        flush=True,
    )


def close(broker: Broker) -> None:
    try:
        broker.close()
    except LogFailed as error:
        end_at_once(str(error))


def end_at_once(reason: str, code: ExitCode = ExitCode.FATAL) -> NoReturn:
    """Print the reason and end the process at once, because going on could lose data. No cleanup runs, as it might
    still write.
    """
    logger.critical("this node stops now: %s", reason)
    print(f"keelmqd: fatal: {reason}", file=sys.stderr, flush=True)
    os._exit(code)


def end_outdated(reason: str) -> NoReturn:
    """End the process with WRONG_VERSION: this build does not know the present feature level of the cluster."""
    end_at_once(reason, ExitCode.WRONG_VERSION)
