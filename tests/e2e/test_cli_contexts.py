"""`keelmq` with contexts, as a process of its own, against a cluster that enforces permissions."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.closed_cluster import ADMINISTRATOR, administrator_file, shared_closed_cluster
from tests.e2e.cluster_process import ClusterProcess
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process


cluster = shared_closed_cluster(nodes=1)


class Terminal:
    """Runs `keelmq` in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(self, *arguments: str, code: int = 0, **variables: str) -> str:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("KEELMQ_")}
        environment |= {"XDG_CONFIG_HOME": str(self.home), "COLUMNS": "200", **variables}
        command = [sys.executable, "-c", "from keelmq.cli.entry import main; main()", *arguments]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert ADMINISTRATOR not in done.stdout + done.stderr
        return done.stdout + done.stderr


def test_a_context_holds_servers_and_token_and_flags_override_it(cluster: ClusterProcess, tmp_path: Path) -> None:
    keelmq = Terminal(tmp_path)
    token, wrong = administrator_file(tmp_path), tmp_path / "wrong"
    wrong.write_text("keelmq_" + "x" * 43)
    keelmq("context", "add", "nowhere", "--servers", "http://127.0.0.1:9")
    keelmq("context", "add", "shop", "--servers", cluster.servers, "--token-file", str(token), "--use")
    assert ADMINISTRATOR not in (tmp_path / "keelmq" / "contexts.json").read_text()
    whoami = json.loads(keelmq("auth", "whoami", "--json"))
    assert whoami["principal"] == "admin"
    keelmq("cluster", "status")

    assert "no_leader" in keelmq("--context", "nowhere", "topic", "list", code=1)
    assert "no_leader" in keelmq("topic", "list", code=1, KEELMQ_CONTEXT="nowhere")
    keelmq("--context", "shop", "topic", "list", KEELMQ_CONTEXT="nowhere")
    keelmq("--context", "shop", "topic", "list", KEELMQ_SERVERS="http://127.0.0.1:9", KEELMQ_TOKEN="keelmq_wrong")
    keelmq("--context", "nowhere", "--token-file", str(token), "topic", "list", "--servers", cluster.servers)
    assert "unauthenticated" in keelmq("--token-file", str(wrong), "topic", "list", code=1)

    alone = keelmq("topic", "list", "--servers", cluster.servers, code=1)
    assert "unauthenticated" in alone, "the token of the current context is for its own servers"
    assert "unauthenticated" in keelmq("topic", "list", code=1, KEELMQ_SERVERS=cluster.servers)
    exported = keelmq("topic", "list", "--servers", cluster.servers, code=1, KEELMQ_CONTEXT="shop")
    assert "unauthenticated" in exported, "nor does an exported one meet servers that are typed"
    keelmq("--context", "shop", "topic", "list", "--servers", cluster.servers)
    assert "context_not_found" in keelmq("--context", "other", "topic", "list", code=1)


def test_a_context_without_a_token_shows_none_of_the_variables(cluster: ClusterProcess, tmp_path: Path) -> None:
    keelmq = Terminal(tmp_path)
    keelmq("context", "add", "open", "--servers", cluster.servers)
    assert "unauthenticated" in keelmq("--context", "open", "topic", "list", code=1, KEELMQ_TOKEN=ADMINISTRATOR)
    keelmq("topic", "list", KEELMQ_SERVERS=cluster.servers, KEELMQ_TOKEN=ADMINISTRATOR)
