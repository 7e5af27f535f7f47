"""`keelmq-deploy render`: what it writes is what keelmqd takes, and nothing is open to others without saying so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.reporting.result import result_of
from tests.patience import PATIENCE_S, RUN_PATIENCE_S
from tests.requirements import NAMESPACES, OVERLAY, REPOSITORY
from tests.unit.deploy.test_rendering import inventory_text

pytestmark = pytest.mark.process

HOSTS = {"mq1": 1, "mq2": 2, "mq3": 3}


def render(inventory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deploy.rollout", "render", *arguments, "-i", str(inventory)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE_S)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    return tmp_path / "cluster.toml"


def test_what_others_could_reach_is_not_rendered_without_saying_so(inventory: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    inventory.write_text(inventory_text(HOSTS, tls="peers"))
    refused = render(inventory, "compose", "-o", str(output))
    assert refused.returncode == 1
    assert "which requires http_tls_cert and http_tls_key and auth enforce" in refused.stderr
    assert not output.exists()
    inventory.write_text(inventory_text(HOSTS, tls="", options="insecure_http = true"))
    refused = render(inventory, "compose", "-o", str(output))
    assert refused.returncode == 1
    assert "tls_cert: required with tls_key and tls_ca" in refused.stderr
    assert not output.exists()
    inventory.write_text(inventory_text(HOSTS, tls="", options="insecure_http = true\ninsecure_peers = true"))
    done = render(inventory, "compose", "-o", str(output))
    assert done.returncode == 0, done.stderr
    assert "insecure_http = true" in (output / "config" / "node-1.toml").read_text()


def test_a_repetition_changes_nothing_and_a_renewal_the_certificates_alone(inventory: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    inventory.write_text(inventory_text(HOSTS, options='auth = "enforce"'))
    planned = render(inventory, "compose", "-o", str(output), "--dry-run")
    assert "node 3: make its certificate" in planned.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.toml"]
    done = render(inventory, "compose", "-o", str(output))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1].removeprefix("RESULT "))["steps_done"] == 6
    before = contents(output)
    assert render(inventory, "compose", "-o", str(output)).returncode == 0
    assert contents(output) == before
    assert render(inventory, "compose", "-o", str(output), "--renew").returncode == 0
    after = contents(output)
    assert {name for name in before if before[name] != after[name]} == {
        f"secrets/node-{node_id}/node.crt" for node_id in HOSTS.values()
    }


def test_mistakes_change_nothing(inventory: Path, tmp_path: Path) -> None:
    inventory.write_text(inventory_text(HOSTS, options='auth = "enforce"'))
    assert render(inventory, "compose").returncode == 2
    assert render(inventory, "nomad", "-o", str(tmp_path / "out")).returncode == 2
    foreign = render(inventory, "compose", "-o", str(REPOSITORY / "docs"))
    assert foreign.returncode == 1
    assert "was not rendered by keelmq-deploy" in foreign.stderr
    inventory.write_text(inventory.read_text().replace("[containers]\nimage", "[containers]\n# image"))
    without_image = render(inventory, "compose", "-o", str(tmp_path / "out"))
    assert without_image.returncode == 2
    assert "image is missing in [containers]" in without_image.stderr
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == ["cluster.toml"]


def test_the_manifests_make_a_cluster_that_hands_over_before_a_pod_is_stopped() -> None:
    NAMESPACES.require()
    OVERLAY.require()
    command = [sys.executable, "-m", "tests.deploy.pods"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("KEELMQ_")}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=variables, capture_output=True, text=True, timeout=RUN_PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = result_of(done.stdout)
    assert result["messages"] == 1
    assert result["leader"] != result["first_leader"]
