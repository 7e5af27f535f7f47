"""Tests backups of a real cluster in an S3-compatible store, a process of its own, and the restore from there."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from cluster.process.exit_codes import ExitCode
from tests.e2e.cluster_process import ClusterProcess, wait_for
from tests.e2e.fixtures import KEELMQ, own_cluster
from tests.e2e.test_backup import cli, goes_on, keelmqd, load, metric, prepare, restore
from tests.object_store import HeldLink, StoreProcess
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process

BUCKET: Final = "backups"
FOLDER: Final = f"s3://{BUCKET}/shop/"
BEFORE_PARTS_BYTES: Final = 4096
"""More than the requests that begin an upload have."""

cluster = own_cluster()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProcess]:
    with StoreProcess(tmp_path) as made:
        made.use(monkeypatch)
        made.client.create_bucket(Bucket=BUCKET)
        yield made


def test_a_backup_in_a_store_is_restored_at_other_addresses(
    cluster: ClusterProcess, store: StoreProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(cluster)
    follower = cluster.follower()
    with load(cluster.wait_leader()):
        begun = json.loads(cli("backup", "create", FOLDER, "--node", follower.url, "--json"))
    assert (metric(follower, "keelmq_backups_stored_total"), metric(follower, "keelmq_backups_under_way")) == (1, 0)
    age_s = metric(follower, "keelmq_backup_age_seconds")
    assert age_s is not None
    assert 0 <= age_s < 60
    named = f"{FOLDER}nightly.backup"
    cli("backup", "create", named, "--node", follower.url)
    assert cli("backup", "create", named, "--node", follower.url, code=1) == ""
    listed = json.loads(cli("backup", "list", FOLDER, "--json"))
    assert {each["file"] for each in listed} == {begun["file"], named}
    assert begun["state_hash"] in {each["state_hash"] for each in listed}
    assert json.loads(cli("backup", "verify", begun["file"], "--json"))["whole"]
    completed = what_fails_leaves_nothing(cluster, store, monkeypatch)
    assert len(json.loads(cli("backup", "list", FOLDER, "--json"))) == 2 + completed
    assert store.uploads(BUCKET) == []
    cluster.stop()

    store.flip(BUCKET, "shop/nightly.backup", 2_000)
    assert "DAMAGED" in cli("backup", "verify", named, code=1)
    cli("backup", "fetch", named, f"{tmp_path}/", code=1)
    other = ClusterProcess(tmp_path / "other", nodes=3)
    place = ("--data-dir", str(other.nodes[1].data_dir), "--node-id", "1", "--peer", other.nodes[1].peer_option)
    told = keelmqd("restore", "--backup", begun["file"], *place)
    assert (told.returncode, "keelmq backup fetch" in told.stderr) == (ExitCode.BAD_CONFIG, True), told
    cli("backup", "fetch", begun["file"], f"{tmp_path}/")
    file = tmp_path / begun["file"].rpartition("/")[2]
    assert [each.name for each in tmp_path.glob("*.backup*")] == [file.name]
    assert file.stat().st_size == begun["bytes"]
    for node in other.nodes.values():
        done = restore(file, node, other, "--restore-id", "drill")
        assert (done.returncode, begun["state_hash"] in done.stdout) == (ExitCode.STOPPED, True), done
    with other:
        goes_on(other)


def what_fails_leaves_nothing(cluster: ClusterProcess, store: StoreProcess, variables: pytest.MonkeyPatch) -> bool:
    """Try a bucket that is missing, false credentials, and a service that is stopped while its upload is on its way.
    Return whether the last one said that it had completed its backup by then: it hears of the signal late when the
    machine is busy.
    """
    assert cli("backup", "create", "s3://no-such-bucket/", "--servers", cluster.servers, code=1) == ""
    with variables.context() as false:
        false.setenv("AWS_SECRET_ACCESS_KEY", "false")
        assert cli("backup", "create", FOLDER, "--servers", cluster.servers, code=1) == ""
    with HeldLink(store, BEFORE_PARTS_BYTES) as link:
        target = (FOLDER, "--endpoint-url", link.url, "--servers", cluster.servers)
        running = subprocess.Popen([*KEELMQ, "backup", "create", *target], stderr=subprocess.PIPE, text=True)
        wait_for(lambda: store.uploads(BUCKET), "the upload to begin")
        running.send_signal(signal.SIGTERM)
        link.let_go()
        _, said = running.communicate(timeout=PATIENCE_S)
    assert said == ""
    assert running.returncode in (0, 130)
    return running.returncode == 0
