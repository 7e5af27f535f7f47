"""A node that has started with a snapshot, and whose log is still behind it, serves its state and says so."""

import asyncio
from pathlib import Path

import aiohttp
import msgspec

from cluster.broker import Broker
from cluster.process.config import NodeConfig
from deploy.local_nodes import free_ports
from store.index.index import Index
from store.log.base import LogBase
from store.log.commit_log import CommitLog
from store.log.disk import PosixDisk
from store.snapshots.install import Decision, IndexDirectories, SnapshotStore
from store.state.machine import applied_state
from tests.unit.cluster.conftest import node_config, running_node

BASE_INDEX = 3
SEGMENT_BYTES = 1 << 20


def take_own_state(data: str) -> None:
    """Install the node's own state as if the leader had sent it, with a log that begins behind an early entry."""
    disk = PosixDisk()
    index = Index.open(f"{data}/index")
    applied = applied_state(index)
    log = CommitLog.open(disk, f"{data}/log", segment_bytes=SEGMENT_BYTES, cache_bytes=0, applied_index=applied.index)
    base = LogBase(log.position_of(BASE_INDEX + 1), BASE_INDEX, log.term_at(BASE_INDEX))
    log.close()
    snapshots = SnapshotStore(disk, data, index, IndexDirectories(data))
    incoming = snapshots.open_incoming()
    for key, value in index.pairs():
        incoming.put(key, value)
    incoming.commit()
    snapshots.decide(incoming, Decision(base, applied.index, applied.state_hash, 1234, 2000))
    index.close()


def one_of_three(config: NodeConfig) -> NodeConfig:
    """Return the same node in a cluster whose other nodes do not run."""
    ports = free_ports(4)
    own = f"1={config.peer_listen}=http://{config.http_listen}"
    others = (f"{node}=127.0.0.1:{ports[2 * node - 4]}=http://127.0.0.1:{ports[2 * node - 3]}" for node in (2, 3))
    return msgspec.structs.replace(config, peers=(own, *others))


async def test_reads_that_may_need_the_missing_log_go_to_the_leader(tmp_path: Path) -> None:
    fatal: list[str] = []
    config = node_config(tmp_path)
    async with running_node(config, fatal) as node:
        await node.call("PUT", "/v1/topics/orders", {"queues": 1})
        for number in range(5):
            await node.call("POST", "/v1/topics/orders/messages", {"messages": [{"body": f"m{number}"}]})
    take_own_state(config.data_dir)
    broker = Broker.open(one_of_three(config), fatal.append)
    stop, ready = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(broker.serve(stop, ready.set))
    try:
        await ready.wait()
        async with aiohttp.ClientSession(base_url=f"http://{config.http_listen}") as session:
            for path in ("/v1/topics/orders/queues/0/messages?offset=0", "/v1/log?from_index=4", "/v1/topics"):
                async with session.get(path) as answer:
                    assert (answer.status, (await answer.json(content_type=None))["code"]) == (503, "no_leader")
            async with session.get("/readyz") as answer:
                assert answer.status == 503
                assert "the log ends at entry 3, the snapshot at" in await answer.text()
            async with session.get("/v1/cluster") as answer:
                view = await answer.json()
                assert view["durable_index"] == BASE_INDEX < view["applied_index"]
            async with session.get("/metrics") as answer:
                text = await answer.text()
                assert "keelmq_log_catching_up 1.0" in text
                assert "keelmq_snapshots_received_total 1.0" in text
                assert "keelmq_snapshot_received_bytes_total 1234.0" in text
    finally:
        stop.set()
        assert await serving is False, "it was told to stop, and does not start again"
        broker.close()
    assert not fatal
