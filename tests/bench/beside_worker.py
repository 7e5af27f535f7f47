"""Runs a cluster of the tree in the working folder and measures it on demand, for `tests/bench/beside.py`.

It is run by the Python of that tree, which may be an earlier version: it uses no more of that tree than `BenchCluster`,
`floor` and the SDK's calls, which every tree since 0.1.0 has. The loads are those beside this file, so that both trees
are sent the same bodies. It reads a name of LOADS and a number of seconds per line, and prints a line that begins with
PREFIX and holds a JSON number.
"""

import asyncio
import importlib.util
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

sys.path[0] = str(Path.cwd())  # not the folder of this file: the tree to be measured

import aiohttp  # noqa: E402


def _share(module: str) -> None:
    """Import a module of the benchmark from beside this file, instead of the one of the tree to be measured."""
    name = f"tests.bench.{module}"
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{module}.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


for _shared in ("bodies", "load"):
    _share(_shared)


from tests.bench import load  # noqa: E402
from tests.bench.cluster import BenchCluster  # noqa: E402

PREFIX: Final = "MEASURED "
QUEUES: Final = 4
TOPICS: Final = {"sends": "normal", "transactions": "transaction", "consumed": "normal"}
"""Topics of the loads, with their types."""
Load = Callable[[Sequence[str], float], Coroutine[Any, Any, float]]


async def _sequential(urls: Sequence[str], seconds: float) -> float:
    load.SEQUENTIAL_SENDS = int(200 * seconds)  # type: ignore[misc]
    return (await load.sequential_sends(urls, "sends", 1024)).p50_ms


async def _concurrent(urls: Sequence[str], seconds: float) -> float:
    return await load.concurrent_sends(urls, "sends", 1024, seconds)


async def _batches(urls: Sequence[str], seconds: float) -> float:
    return await load.batch_sends(urls, "sends", load.batches_of(256, 1024), seconds)


async def _small_batches(urls: Sequence[str], seconds: float) -> float:
    return await load.batch_sends(urls, "sends", load.batches_of(1000, 100), seconds)


async def _transactions(urls: Sequence[str], seconds: float) -> float:
    return await load.transactions(urls, "transactions", 1024, 64, seconds)


async def _end_to_end(urls: Sequence[str], seconds: float) -> float:
    return await load.produce_and_consume(urls, "consumed", load.batches_of(256, 1024), seconds)


LOADS: Final[dict[str, Load]] = {
    "sequential_p50": _sequential,
    "concurrent_1k": _concurrent,
    "batch_256x1k": _batches,
    "batch_1000x100": _small_batches,
    "transactions_64": _transactions,
    "end_to_end": _end_to_end,
}


async def _create_topics(url: str) -> None:
    async with aiohttp.ClientSession(raise_for_status=True) as http:
        for topic, kind in TOPICS.items():
            async with http.put(f"{url}/v1/topics/{topic}", json={"queues": QUEUES, "type": kind}):
                pass


def _cluster(directory: Path, protection: str) -> BenchCluster:
    """Return the nodes, which do not run yet; `protection` is one of protection.py, or "open"."""
    if protection == "open":
        return BenchCluster(directory)
    from tests.bench.protection import closed_cluster  # which earlier trees do not have

    return closed_cluster(directory, protection)  # type: ignore[arg-type]


def _prepare(cluster: BenchCluster, directory: Path, protection: str) -> None:
    """Create the topics, and the user of the loads if the cluster is closed."""
    if protection == "open":
        asyncio.run(_create_topics(cluster.urls[0]))
        return
    from tests.bench.protection import call, sign_in

    headers = sign_in(cluster, directory)
    for topic, kind in TOPICS.items():
        call(cluster, "PUT", f"/v1/topics/{topic}", {"queues": QUEUES, "type": kind}, headers)


def main() -> None:
    """Measure until standard input ends or SIGTERM comes; the nodes end with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    parent, protection = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="nodes-", dir=parent) as directory:
        cluster = _cluster(Path(directory), protection)
        try:
            cluster.start()
            _prepare(cluster, Path(directory), protection)
            print(PREFIX + "0", flush=True)
            for line in sys.stdin:
                name, seconds = line.split()
                print(PREFIX + json.dumps(asyncio.run(LOADS[name](cluster.urls, float(seconds)))), flush=True)
        finally:
            cluster.close()


if __name__ == "__main__":
    main()
