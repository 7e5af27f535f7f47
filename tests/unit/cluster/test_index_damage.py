"""A node whose index is damaged ends, whoever meets the damage: the other nodes have sound rows."""

from pathlib import Path

import pytest

from cluster.broker import Broker
from cluster.process.config import NodeConfig
from cluster.process.exit_codes import ExitCode, StartupError
from tests.unit.cluster.conftest import node_config, running_node

BATCHES, MESSAGES = 8, 500
IDS = [f"{number:05d}" for number in range(BATCHES * MESSAGES)]


@pytest.fixture
async def config(tmp_path: Path) -> NodeConfig:
    """Return the configuration of a stopped node with a topic and its messages."""
    config = node_config(tmp_path)
    async with running_node(config, []) as node:
        await node.call("PUT", "/v1/topics/t", {"queues": 1})
        for batch in range(BATCHES):
            messages = [{"body": "x", "message_id": each} for each in IDS[batch * MESSAGES :][:MESSAGES]]
            assert (await node.call("POST", "/v1/topics/t/messages", {"messages": messages})).status == 200
    return config


def damage(config: NodeConfig, share: float) -> None:
    """Damage a block of each file of the index: at 0 one with rows that a start reads, at 0.5 one with messages."""
    for file in (Path(config.data_dir) / "index").glob("*.sst"):
        with file.open("r+b") as damaged:
            damaged.seek(int(file.stat().st_size * share))
            damaged.write(b"damaged")


async def test_a_reader_that_meets_a_damaged_block_of_the_index_ends_the_node(config: NodeConfig) -> None:
    damage(config, 0.5)
    fatal: list[str] = []
    async with running_node(config, fatal) as node:
        for each in IDS:
            answer = await node.call("GET", f"/v1/messages/{each}?topic=t")
            if fatal:
                break
            assert answer.status == 200, answer
    assert answer.status == 500
    assert "block checksum mismatch" in fatal[0]
    assert "The log is complete, so the index is rebuilt from it" in fatal[0]


async def test_a_start_that_meets_a_damaged_block_says_how_to_go_on(config: NodeConfig) -> None:
    damage(config, 0)
    fatal: list[str] = []
    with pytest.raises(StartupError, match="block checksum mismatch") as failed:
        Broker.open(config, fatal.append)
    assert failed.value.code == ExitCode.LOG_CORRUPT
    assert "The log is complete, so the index is rebuilt from it" in str(failed.value)
    assert not fatal
