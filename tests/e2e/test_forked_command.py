"""Tests that the program in place of `keelmqd` does what the command does, and that its nodes look the same."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local_nodes import free_ports, make_secret
from deploy.rollout.host_root import running
from tests.e2e.cluster_process import wait_for

pytestmark = pytest.mark.process

COMMAND = Path(sys.executable).parent / "keelmqd"


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--config", "/nonexistent.toml", "--check-config"], ["--nobody"]]
)
def test_it_says_what_the_command_says_and_ends_alike(keelmqd: str, arguments: list[str]) -> None:
    ends = [subprocess.run([program, *arguments], capture_output=True) for program in (keelmqd, COMMAND)]
    forked, real = ((end.returncode, end.stdout, end.stderr) for end in ends)
    assert forked == real


def test_its_node_is_a_process_like_that_of_the_command(keelmqd: str, tmp_path: Path) -> None:
    config, log = tmp_path / "etc" / "keelmqd-1.toml", tmp_path / "log"
    config.parent.mkdir()
    http_port, peer_port = free_ports(2)
    options = {
        "cluster_id": "e2e",
        "node_id": 1,
        "data_dir": str(tmp_path / "data"),
        "peers": [f"1=127.0.0.1:{peer_port}=http://127.0.0.1:{http_port}"],
        "peer_secret_file": str(make_secret(tmp_path)),
        "segment_bytes": 4 << 20,
        "min_free_bytes": 0,
    }
    config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items()))
    environment = {**os.environ, "KEELMQ_LOG_FORMAT": "json"}
    with log.open("wb") as stream:
        program = subprocess.Popen(
            [keelmqd, "--config", str(config)], stdout=stream, stderr=stream, cwd=tmp_path, env=environment
        )
    assert program.wait() == 0
    found = running(tmp_path)
    assert found is not None
    pid, command = found
    try:
        assert pid != program.pid
        assert Path("/" + command[0].lstrip("/")).resolve() == Path(sys.executable).resolve()
        assert command[1:] == [keelmqd, "--config", str(config)]
        assert os.getsid(pid) == pid
        process = Path(f"/proc/{pid}")
        assert (process / "cwd").readlink() == tmp_path
        assert [(process / "fd" / number).readlink() for number in "12"] == [log, log]
        wait_for(lambda: b"keelmqd 0" in log.read_bytes(), "the node to serve")
        assert log.read_bytes().startswith(b'{"')
    finally:
        os.kill(pid, signal.SIGTERM)
    wait_for(lambda: running(tmp_path) is None, "the node to be gone")
