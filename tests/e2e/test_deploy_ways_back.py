"""`keelmq-deploy backup`, `restore` and `recover` on real nodes of this machine."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.rollout.ways_back import ACCEPT
from tests.e2e.cluster_process import wait_for
from tests.e2e.deployment import Deployment, kill_once, load, messages_of
from tests.e2e.killed_tool import kill_at_steps
from tests.e2e.test_deploy_verbs import members, result
from tests.object_store import StoreProcess

pytestmark = pytest.mark.process


@pytest.fixture
def other(tmp_path: Path, keelmqd: str) -> Iterator[Deployment]:
    """Fresh hosts at other addresses."""
    (tmp_path / "other").mkdir()
    made = Deployment(tmp_path / "other", {"program": keelmqd})
    made.fork_tool()
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProcess]:
    """An object store with a bucket, whose address no variable has."""
    with StoreProcess(tmp_path) as made:
        made.use(monkeypatch)
        monkeypatch.delenv("AWS_ENDPOINT_URL")
        made.client.create_bucket(Bucket="backups")
        yield made


def kill_all(deployment: Deployment, *numbers: int) -> None:
    pids = deployment.pids()
    for number in numbers or pids:
        os.kill(pids[number], signal.SIGKILL)
    wait_for(lambda: not set(numbers or pids) & set(deployment.pids()), "the nodes to be gone")


async def test_a_backup_under_load_becomes_a_cluster_on_fresh_hosts(
    deployment: Deployment, other: Deployment, store: StoreProcess
) -> None:
    deployment.done("bootstrap")
    planned = result(deployment, "backup", "--dry-run")
    assert (planned["steps"], planned["file"]) == (2, None)
    assert not (deployment.directory / "cluster.toml.backups").exists()
    target = ("--output", "s3://backups/shop", "--endpoint-url", store.url)
    async with load(deployment) as acknowledged:
        while len(acknowledged) < 10:
            await asyncio.sleep(0)
        made = await asyncio.to_thread(result, deployment, "backup")
        url = (await asyncio.to_thread(result, deployment, "backup", *target))["file"]
    assert Path(made["file"]).parent == deployment.directory / "cluster.toml.backups"
    assert url.startswith("s3://backups/shop/")
    kill_all(deployment)
    for number in deployment.urls:
        shutil.rmtree(deployment.root(number))
    restore = ("restore", "--backup", url, "--endpoint-url", store.url)
    told = other.run(*restore, "--dry-run")
    assert (told.returncode, f"keelmq backup fetch {url}" in told.stderr) == (1, True), told
    output = other.done(*restore)
    assert output.count("state hash") >= 3
    found = await messages_of(other)
    assert 10 <= found <= len(acknowledged)
    assert "nothing is left to do" in other.done(*restore)
    async with load(other) as acknowledged:  # these messages have the ids of old ones, and work goes on
        while len(acknowledged) < found:
            await asyncio.sleep(0)
        await asyncio.to_thread(other.done, "restart")


def backed_up(deployment: Deployment) -> Path:
    """Return the backup of a cluster that was made, and is gone with its hosts."""
    deployment.done("bootstrap")
    file = Path(result(deployment, "backup")["file"])
    kill_all(deployment)
    for number in deployment.urls:
        shutil.rmtree(deployment.root(number))
    return file


def test_a_restore_whose_tool_was_killed_ends_alike(deployment: Deployment, other: Deployment) -> None:
    restore = ("restore", "--backup", str(backed_up(deployment)))

    def notes() -> list[dict[str, Any]]:
        paths = [other.root(number) / "restore.json" for number in other.urls]
        return [json.loads(path.read_text()) for path in paths if path.exists()]

    def nothing_else_is_started(step: str) -> None:
        if step.endswith(": restore"):
            for verb in (("bootstrap",), ("restart",), ("undrain", "3")):
                refused = other.run(*verb)
                assert refused.returncode == 3, refused.stdout + refused.stderr
                assert "is half restored" in refused.stderr

    # Of each kind of step one; `make deploy-test` has all.
    last = lambda step: "node 3" in step or "node " not in step  # noqa: E731
    assert kill_at_steps(other, *restore, chosen=last, after=nothing_else_is_started) == 8
    assert notes() == 3 * [{**notes()[0], "finished": True}]
    assert not any((other.root(number) / "restore.backup").exists() for number in other.urls)
    other.done("status")
    other.done("restart")


def test_data_is_never_replaced_by_a_restore_without_a_word(deployment: Deployment, tmp_path: Path) -> None:
    deployment.done("bootstrap")
    file = result(deployment, "backup", "--output", f"{tmp_path}/kept/")["file"]
    again = deployment.run("backup", "--output", file)
    assert again.returncode == 1
    assert "file_exists" in again.stderr
    before = deployment.pids()
    for yes in ([], ["--yes", "bank"]):
        refused = deployment.run("restore", "--backup", file, *yes)
        assert (refused.returncode, deployment.pids()) == (3, before), refused.stdout + refused.stderr
        assert "add --yes e2e" in refused.stderr
    damaged = tmp_path / "damaged.backup"
    content = Path(file).read_bytes()
    damaged.write_bytes(content[:-1])
    refused = deployment.run("restore", "--backup", str(damaged), "--yes", "e2e")
    assert refused.returncode == 1
    assert "is damaged" in refused.stderr
    assert deployment.pids() == before
    deployment.done("restore", "--backup", file, "--yes", "e2e")
    assert not set(deployment.pids().values()) & set(before.values())
    assert all((deployment.root(number) / "data.old" / "identity").exists() for number in deployment.urls)
    # The same command again discards nothing that was written since.
    after = deployment.pids()
    assert result(deployment, "restore", "--backup", file, "--yes", "e2e")["steps"] == 0
    assert deployment.pids() == after


def test_a_leader_that_has_just_lost_its_majority_is_no_leader(deployment: Deployment) -> None:
    deployment.done("bootstrap")
    survivor = deployment.leader()
    kill_all(deployment, *(lost := [number for number in deployment.urls if number != survivor]))
    for number in lost:
        shutil.rmtree(deployment.root(number))
    deployment.done("recover", str(survivor), ACCEPT)
    assert deployment.leader_of(survivor) == survivor


async def test_the_survivor_of_a_lost_majority_becomes_a_cluster_that_grows(deployment: Deployment) -> None:
    deployment.done("bootstrap")
    async with load(deployment) as acknowledged:
        while len(acknowledged) < 10:
            await asyncio.sleep(0)
    # While a majority is there, nothing is given up.
    assert result(deployment, "recover", "2", ACCEPT)["steps"] == 0
    deployment.done("status")
    kill_all(deployment)
    refused = deployment.run("recover", "2", ACCEPT)
    assert refused.returncode == 3
    assert "which is a majority: next: keelmq-deploy bootstrap" in refused.stderr
    shutil.rmtree(deployment.root(1))
    away = deployment.root(3).rename(deployment.directory / "out-of-reach")
    refused = deployment.run("recover", "2")
    assert refused.returncode == 3
    assert ACCEPT in refused.stderr
    assert "state hash" in refused.stdout
    assert deployment.run("recover", "1", ACCEPT).returncode == 1
    assert kill_at_steps(deployment, "recover", "2", ACCEPT) >= 4
    assert set(deployment.pids()) == {2}
    assert await messages_of(deployment) == len(acknowledged)
    refused = deployment.run("bootstrap")
    assert refused.returncode == 3
    assert "is no member; next: keelmq-deploy add" in refused.stderr
    kill_once(deployment, ("add", "1"), "4 of 5: ")
    deployment.done("add", "1")
    shutil.rmtree(deployment.root(3))  # the refused bootstrap has left its mark there
    away.rename(deployment.root(3))
    refused = deployment.run("add", "3")
    assert refused.returncode == 3
    assert "add --yes e2e" in refused.stderr
    deployment.done("add", "3", "--yes", "e2e")
    assert (deployment.root(3) / "data.old" / "identity").exists()
    assert members(deployment) == {1: "voter", 2: "voter", 3: "voter"}
    before = len(acknowledged)
    async with load(deployment) as acknowledged:
        while len(acknowledged) < before:
            await asyncio.sleep(0)
        await asyncio.to_thread(deployment.done, "restart")
