"""`keelmq-deploy` on nodes that enforce permissions and serve administration at a listener of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local_nodes import free_ports
from tests.e2e.closed_cluster import ADMINISTRATOR, administrator_file
from tests.e2e.deployment import Deployment
from tests.e2e.test_deploy_verbs import result
from tests.patience import PATIENCE_S
from tests.requirements import BASH, REPOSITORY

pytestmark = pytest.mark.process

PAGE = (REPOSITORY / "docs" / "deploy.md").read_text()


@pytest.fixture
def deployment(tmp_path: Path, keelmqd: str) -> Iterator[Deployment]:
    """Three nodes; the tool shows the token of the built-in administrator."""
    token_file = str(administrator_file(tmp_path))
    made = Deployment(tmp_path, {"program": keelmqd, "token_file": token_file})
    made.fork_tool()
    for number, port in zip((1, 2, 3), free_ports(3), strict=True):
        made.options[number] = {
            "admin_listen": f"127.0.0.1:{port}",
            "auth": "enforce",
            "admin_token_file": token_file,
        }
    made.write()
    try:
        yield made
    finally:
        made.end()


def shell(deployment: Deployment, script: str, token: str) -> subprocess.CompletedProcess[str]:
    """Run the script in the directory of the inventory, with `keelmq` at hand."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "KEELMQ_SERVERS": ",".join(deployment.urls.values()),
        "KEELMQ_TOKEN": token,
    }
    command = ["bash", "-euo", "pipefail", "-c", script]
    return subprocess.run(
        command, cwd=deployment.directory, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )


def use_token(deployment: Deployment, name: str) -> None:
    deployment.cluster["token_file"] = str(deployment.directory / name)
    deployment.write()


def leader_of(deployment: Deployment) -> int:
    return next(number for number in deployment.urls if result(deployment, "leads", str(number))["exit_code"] == 0)


def test_a_user_of_its_own_suffices_for_the_verbs(deployment: Deployment) -> None:
    """The user is made as the page says, and may neither read nor send."""
    BASH.require()
    deployment.done("bootstrap")
    section = PAGE.split("\n## A user of its own\n")[1]
    made = shell(deployment, section.split("```")[1], ADMINISTRATOR)
    assert made.returncode == 0, made.stdout + made.stderr
    token_file = deployment.directory / "deploy.token"
    assert token_file.stat().st_mode & 0o077 == 0
    deployment.cluster["token_file"] = str(token_file)
    deployment.write()
    token = token_file.read_text().strip()
    assert shell(deployment, "keelmq auth whoami", token).stdout.splitlines()[0].startswith("deploy")
    denied = shell(deployment, "keelmq topic create orders", token)
    assert "forbidden" in denied.stdout + denied.stderr
    deployment.done("status")
    to = min({1, 2, 3} - {leader_of(deployment)})
    deployment.done("transfer", str(to))
    assert leader_of(deployment) == to
    deployment.done("drain", str(to))
    deployment.done("undrain", str(to))
    deployment.done("backup")
    follower = min({1, 2, 3} - {leader_of(deployment)})
    deployment.done("backup", str(follower))
    assert len(list((deployment.directory / "cluster.toml.backups").glob("*.backup"))) == 2
    http_port, peer_port = free_ports(2)
    deployment.urls[4], deployment.peers[4] = f"http://127.0.0.1:{http_port}", f"127.0.0.1:{peer_port}"
    deployment.options[4] = {**deployment.options[1], "admin_listen": f"127.0.0.1:{free_ports(1)[0]}"}
    deployment.write()
    deployment.done("add", "4")
    deployment.done("remove", "4")
    withdrawn = shell(deployment, "keelmq auth user delete deploy --yes", ADMINISTRATOR)
    assert withdrawn.returncode == 0, withdrawn.stdout + withdrawn.stderr
    refused = deployment.run("status")
    assert refused.returncode == 1
    assert "/v1/cluster: " in refused.stdout, refused.stdout


def test_verbs_work_with_no_more_rights_than_the_page_says(deployment: Deployment) -> None:
    """One user asks and changes nothing; another one changes members, from its own machine alone."""
    BASH.require()
    deployment.done("bootstrap")
    section = PAGE.split("\n### Fewer rights\n")[1]
    made = shell(deployment, section.split("```")[1], ADMINISTRATOR)
    assert made.returncode == 0, made.stdout + made.stderr
    use_token(deployment, "watch.token")
    deployment.done("status")
    to = min({1, 2, 3} - {leader_of(deployment)})
    deployment.done("drain", str(to))
    deployment.done("undrain", str(to))
    deployment.done("replace", str(to))
    for verb in ("transfer", "remove"):
        refused = result(deployment, verb, str(to))
        assert (refused["exit_code"], "forbidden: " in refused["reason"]) == (1, True), refused
    refused = result(deployment, "backup")
    assert (refused["exit_code"], "forbidden: " in refused["reason"]) == (1, True), refused
    http_port, peer_port = free_ports(2)
    deployment.urls[4], deployment.peers[4] = f"http://127.0.0.1:{http_port}", f"127.0.0.1:{peer_port}"
    deployment.options[4] = {**deployment.options[1], "admin_listen": f"127.0.0.1:{free_ports(1)[0]}"}
    use_token(deployment, "members.token")
    refused = result(deployment, "add", "4")
    assert (refused["exit_code"], "forbidden: " in refused["reason"]) == (1, True), "this machine is another one"
    allow = "keelmq auth acl allow deploy-members admin cluster --network 127.0.0.1/32"
    allowed = shell(deployment, allow, ADMINISTRATOR)
    assert allowed.returncode == 0, allowed.stdout + allowed.stderr
    deployment.done("add", "4")
    deployment.done("transfer", str(to))
    deployment.done("remove", "4")
    deployment.done("backup")
