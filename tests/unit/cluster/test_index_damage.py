"""A node whose index is damaged ends, whoever meets the damage: the other nodes have sound rows."""

from pathlib import Path

from tests.unit.cluster.conftest import node_config, running_node

BATCHES, MESSAGES = 8, 500


async def test_a_reader_that_meets_a_damaged_block_of_the_index_ends_the_node(tmp_path: Path) -> None:
    config = node_config(tmp_path)
    ids = [f"{number:05d}" for number in range(BATCHES * MESSAGES)]
    async with running_node(config, []) as node:
        await node.call("PUT", "/v1/topics/t", {"queues": 1})
        for batch in range(BATCHES):
            messages = [{"body": "x", "message_id": each} for each in ids[batch * MESSAGES :][:MESSAGES]]
            assert (await node.call("POST", "/v1/topics/t/messages", {"messages": messages})).status == 200
    for file in (Path(config.data_dir) / "index").glob("*.sst"):
        with file.open("r+b") as damaged:
            damaged.seek(file.stat().st_size // 2)
            damaged.write(b"damaged")
    fatal: list[str] = []
    async with running_node(config, fatal) as node:
        for each in ids:
            answer = await node.call("GET", f"/v1/messages/{each}?topic=t")
            if fatal:
                break
            assert answer.status == 200, answer
    assert answer.status == 500
    assert "block checksum mismatch" in fatal[0]
    assert "Stop this node" in fatal[0]
