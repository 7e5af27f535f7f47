"""`keelmq-deploy` while a host or a node is not well: it says all that there is, with host and next step."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.rollout.host_root import MARK
from deploy.rollout.transport import Host, HostError
from tests.unit.deploy.stand_ins import Cluster, Run


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster()
    for number in (1, 2, 3):
        (tmp_path / "hosts" / f"node{number}").mkdir(parents=True)
        (tmp_path / "hosts" / f"node{number}" / "keelmqd.log").write_text(f"line of {number}\n")
    made.inventory(tmp_path)
    yield made
    made.end()


@pytest.mark.usefixtures("cluster")
def test_logs_of_the_other_hosts_are_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Host.logs

    def refuse_second(host: Host, lines: int) -> list[str]:
        if host.node.id == 2:
            raise HostError(host.node, "logs: exit code 255: No route to host")
        return logs(host, lines)

    monkeypatch.setattr(Host, "logs", refuse_second)
    code, said = run("logs")
    assert code == 1
    assert "node 1  line of 1" in said
    assert "node 3  line of 3" in said
    assert "node 2 (this machine): logs: exit code 255: No route to host" in said


@pytest.mark.usefixtures("cluster")
def test_certificates_reach_the_other_hosts(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead host must not have those of the others expire."""
    facts = Host.facts

    def refuse_second(host: Host) -> dict[str, Any]:
        if host.node.id == 2:
            raise HostError(host.node, "facts: exit code 255: No route to host")
        return facts(host)

    monkeypatch.setattr(Host, "facts", refuse_second)
    path = tmp_path / "cluster.toml"
    path.write_text(path.read_text().replace('id = "shop"', 'id = "shop"\ntls = "peers"', 1))
    pki = tmp_path / "cluster.toml.pki"
    subprocess.run([Path(sys.executable).with_name("keelmq"), "cert", "ca", str(pki)], check=True, capture_output=True)
    for name in (f"node-{number}.{end}" for number in (1, 2, 3) for end in ("crt", "key")):
        (pki / name).write_text(f"{name}\n")
    for number in (1, 2, 3):
        (tmp_path / "hosts" / f"node{number}" / MARK).write_text(f"node {number} of the cluster shop\n")
    for _ in range(2):
        code, said = run("certs")
        assert code == 1, said
        assert "node 2 (this machine): facts: exit code 255: No route to host" in said
        brought = {each.parts[-3]: each.read_text() for each in tmp_path.glob("hosts/*/etc/node.crt")}
        assert brought == {"node1": "node-1.crt\n", "node3": "node-3.crt\n"}
    assert "plan: nothing is left to do" in said


@pytest.mark.usefixtures("cluster")
def test_logs_that_were_put_aside_belong_to_the_log(run: Run, tmp_path: Path) -> None:
    (tmp_path / "hosts" / "node2" / "keelmqd.log.1").write_text("first\nsecond\n")
    code, said = run("logs", "--lines", "2")
    assert code == 0
    assert "node 2  second\nnode 2  line of 2\n" in said
    assert "first" not in said


def test_a_node_that_does_not_come_is_named_with_host_and_next_step(cluster: Cluster, run: Run, tmp_path: Path) -> None:
    cluster.down = {3}
    cluster.inventory(tmp_path)
    code, said = run("wait", "--timeout-s", "0.1")
    assert code == 1
    assert "still node 3 (this machine) is not ready: " in said
    assert "; next: keelmq-deploy logs" in said


def test_a_node_that_has_ended_is_not_waited_for(
    cluster: Cluster, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port in use is named in its log, and nothing changes by itself."""
    monkeypatch.setattr("deploy.rollout.verbs.LOOK_EVERY_S", 0.0)
    cluster.down = {3}
    cluster.inventory(tmp_path)
    program = tmp_path / "keelmqd"
    program.write_text(
        '#!/bin/sh\n[ "$3" = --check-config ] || { echo "port 7091: Address already in use"; exit 3; }\n'
    )
    program.chmod(0o700)
    path = tmp_path / "cluster.toml"
    path.write_text(path.read_text().replace('id = "shop"', f'id = "shop"\nprogram = "{program}"', 1))
    for number in (1, 2, 3):
        (tmp_path / "hosts" / f"node{number}" / MARK).write_text(f"node {number} of the cluster shop\n")
    code, said = run("bootstrap", "--timeout-s", "1000")
    assert code == 1
    wanted = "node 3 (this machine) has ended; it said: port 7091: Address already in use; next: keelmq-deploy logs"
    assert wanted in said, said
