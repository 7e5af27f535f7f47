"""Weights in the file of quotas: the shares of users that offer more than the log takes, and what they leave to others.

Three users with weights offer batches flat out, and nine others have two connections each that send one message of
1 KiB after the other. First the nodes are far from each other, so that the log takes a few entries in a round trip:
that is what senders compete for. Then they are near, and all compete for the processors of a machine that runs nodes
and senders.
"""

import asyncio
import contextlib
import re
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from deploy.local_nodes import free_ports, wait_ready
from tests.bench.cluster import MIB, BenchCluster
from tests.bench.fairness import (
    BATCH_MESSAGES,
    CONNECTIONS,
    GREEDY_CONNECTIONS,
    SHARE_TOLERANCE_PERCENT,
    Sender,
    rates_of,
    sign_in,
)
from tests.bench.figures import Figure, Figures
from tests.bench.protection import administrator_of, closed_cluster, metrics
from tests.far_link import FarLink

WEIGHTS: Final = {"light": 1, "middle": 2, "heavy": 4}
OTHERS: Final = tuple(f"other-{number}" for number in range(9))
ONE_WAY_MS: Final = 200.0
"""Delay between nodes in one direction: with it the log takes about 10 MiB/s."""
ELECTION_TIMEOUT_MS: Final = 5_000
WARM_UP_S: Final = 4.0
SECONDS_MIN: Final = 10.0
SAMPLE_S: Final = 0.5
IN_FLIGHT: Final = re.compile(r"^keelmq_in_flight_bytes (\S+)$", re.MULTILINE)


async def measure(directory: Path, seconds: float, figures: Figures) -> None:
    """Measure the shares where the log is what all wait for, and where the processors are."""
    seconds = max(seconds, SECONDS_MIN)
    for name in ("far", "near"):
        (directory / name).mkdir()
        cluster = _cluster(directory / name)
        try:
            if name == "far":
                with _far_from_each_other(cluster):
                    await _far(cluster, directory / name, seconds, figures)
            else:
                cluster.start()
                await _near(cluster, directory / name, seconds, figures)
        finally:
            cluster.close()


def _cluster(directory: Path) -> BenchCluster:
    """Return a cluster that knows the weights, and does not run yet."""
    quotas = directory / "quotas.toml"
    quotas.write_text("".join(f"[users.{user}]\nweight = {weight}\n" for user, weight in WEIGHTS.items()))
    options = {"quota_file": str(quotas), "election_timeout_ms": str(ELECTION_TIMEOUT_MS)}
    return closed_cluster(directory, "auth", options)


@contextlib.contextmanager
def _far_from_each_other(cluster: BenchCluster) -> Iterator[None]:
    """Start the nodes, which reach each other over a far link within the context; they are ready on entry."""
    ports = {}
    for node, port in zip(cluster.nodes, free_ports(len(cluster.nodes)), strict=True):
        node.options["peer_listen"] = f"127.0.0.1:{port}"
        ports[node.peer_port] = port
    for node in cluster.nodes:
        node.start()
    with FarLink(ports, ONE_WAY_MS):
        wait_ready(cluster.nodes)
        yield


def _senders(cluster: BenchCluster, directory: Path) -> tuple[list[Sender], list[Sender]]:
    """Return the users with weights, and the others."""
    tokens = sign_in(cluster, directory, [*WEIGHTS, *OTHERS])
    weighted = [Sender(token, GREEDY_CONNECTIONS, BATCH_MESSAGES) for token in tokens[: len(WEIGHTS)]]
    return weighted, [Sender(token, CONNECTIONS, 1) for token in tokens[len(WEIGHTS) :]]


async def _far(cluster: BenchCluster, directory: Path, seconds: float, figures: Figures) -> None:
    weighted, others = _senders(cluster, directory)
    figures.step(f"nodes {ONE_WAY_MS:.0f} ms apart: {len(OTHERS)} users as usual, without anybody else")
    usual = await rates_of(cluster, [others], WARM_UP_S, seconds)
    figures.step(f"the same, and users with weights {', '.join(map(str, WEIGHTS.values()))} flat out")
    waiting = asyncio.create_task(_waiting_mib(cluster, directory, seconds))
    found = await rates_of(cluster, [*([each] for each in weighted), others], WARM_UP_S, seconds)
    of_weights, of_others = found[: len(WEIGHTS)], found[len(WEIGHTS) :]
    for weight, share in _shares(of_weights).items():
        figures.add(
            Figure(f"weight_{weight}_share", f"more offered than the log takes: share of weight {weight}", share, "%"),
            Figure(f"weight_{weight}_promised", "… share that the weight promises", _promised(weight), "%"),
        )
    kept = 100 * statistics.median(of_others) / statistics.median(usual)
    messages = sum(of_weights) * BATCH_MESSAGES + sum(of_others)
    figures.add(
        Figure("weight_share_off", "… furthest from its promise", _off(of_weights), "%", SHARE_TOLERANCE_PERCENT),
        Figure("weights_others_kept", "… rate that nine others keep", kept, "%"),
        Figure("weights_messages", "… messages of all", messages, "msg/s"),
        Figure("weights_in_flight", "… bytes that were offered and not committed, median", await waiting, "MiB"),
    )


async def _near(cluster: BenchCluster, directory: Path, seconds: float, figures: Figures) -> None:
    weighted, others = _senders(cluster, directory)
    figures.step("the same with nodes that are near: the processors are the bottleneck")
    waiting = asyncio.create_task(_waiting_mib(cluster, directory, seconds))
    found = (await rates_of(cluster, [*([each] for each in weighted), others], WARM_UP_S, seconds))[: len(WEIGHTS)]
    for weight, share in _shares(found).items():
        figures.add(Figure(f"near_weight_{weight}_share", f"near nodes: share of weight {weight}", share, "%"))
    figures.add(
        Figure("near_weights_messages", "… messages of the three", sum(found) * BATCH_MESSAGES, "msg/s"),
        Figure("near_weights_in_flight", "… bytes that were offered and not committed, median", await waiting, "MiB"),
    )


def _shares(rates: Sequence[float]) -> dict[int, float]:
    """Return what each weight got of what all of them got, in percent."""
    return {weight: 100 * rate / sum(rates) for weight, rate in zip(WEIGHTS.values(), rates, strict=True)}


def _promised(weight: int) -> float:
    return 100 * weight / sum(WEIGHTS.values())


def _off(rates: Sequence[float]) -> float:
    """Return by how many percent of its promised share a user missed it, of the one that missed it most."""
    return max(100 * abs(share / _promised(weight) - 1) for weight, share in _shares(rates).items())


async def _waiting_mib(cluster: BenchCluster, directory: Path, seconds: float) -> float:
    """Return the median of the leader's bytes in flight after the warm-up."""
    await asyncio.sleep(WARM_UP_S)
    samples = []
    for _ in range(int(seconds / SAMPLE_S / 2)):
        await asyncio.sleep(SAMPLE_S)
        texts = [await asyncio.to_thread(metrics, node, administrator_of(directory)) for node in cluster.nodes]
        samples.append(max(float(value) for text in texts for value in IN_FLIGHT.findall(text)))
    return statistics.median(samples) / MIB
