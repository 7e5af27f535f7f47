"""Verbs of `keelmq-deploy` killed at each of their steps, one after the other: they end as if they had not been."""

import pytest

from deploy.local_nodes import free_ports
from tests.e2e.cluster_process import wait_for
from tests.e2e.deployment import Deployment
from tests.e2e.killed_tool import kill_at_steps
from tests.e2e.test_deploy_verbs import members, result

pytestmark = pytest.mark.process


def test_a_cluster_is_made_changed_and_destroyed_by_a_tool_that_is_killed(deployment: Deployment) -> None:
    deployment.done("bootstrap")  # killed over ssh in tests/e2e/test_deploy.py
    before = deployment.pids()
    assert len(before) == 3
    to = min(number for number in (1, 2, 3) if number != deployment.leader())
    kill_at_steps(deployment, "transfer", str(to))
    assert deployment.leader() == to
    # The note that it is drained, and the stop; then check, start, waiting, and the note.
    assert kill_at_steps(deployment, "drain", str(to)) == 2
    assert set(deployment.pids()) == set(before) - {to}
    assert kill_at_steps(deployment, "undrain", str(to)) >= 2
    assert result(deployment, "undrain", str(to))["steps"] == 0
    assert set(deployment.pids()) == set(before)
    http_port, peer_port = free_ports(2)
    deployment.urls[4], deployment.peers[4] = f"http://127.0.0.1:{http_port}", f"127.0.0.1:{peer_port}"
    deployment.options[4] = {}
    deployment.write()
    assert kill_at_steps(deployment, "add", "4") >= 4
    assert members(deployment) == dict.fromkeys((1, 2, 3, 4), "voter")
    assert kill_at_steps(deployment, "remove", "4") >= 1
    assert members(deployment) == dict.fromkeys((1, 2, 3), "voter")
    assert set(deployment.pids()) == set(before)
    del deployment.urls[4]
    deployment.write()
    assert kill_at_steps(deployment, "backup") >= 2
    backups = deployment.directory / "cluster.toml.backups"
    # What a killed tool had begun goes on to its end.
    wait_for(lambda: not list(backups.glob("*.partial")), "all backups to be whole")
    assert list(backups.glob("*.backup"))
    deployment.done("status")
    assert kill_at_steps(deployment, "destroy", "--yes", "e2e") >= 3
    assert deployment.pids() == {}
    assert not any(deployment.root(number).exists() for number in (1, 2, 3))


def test_certificates_are_made_and_renewed_by_a_tool_that_is_killed(deployment: Deployment) -> None:
    deployment.cluster["tls"] = "all"
    deployment.urls = {number: url.replace("http:", "https:") for number, url in deployment.urls.items()}
    deployment.write()
    assert kill_at_steps(deployment, "certs") >= 7
    assert result(deployment, "certs")["steps"] == 0
    deployment.done("bootstrap")
    deployment.done("certs", "--renew")
    deployment.done("status")
