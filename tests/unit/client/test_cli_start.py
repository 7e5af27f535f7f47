"""A start of `keelmq` imports what its command needs: the modules are counted, because times depend on the machine."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Set
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_command

from keelmq.cli.app import SUMMARIES, app
from keelmq.cli.lazy import LazyCommand

RUN: Final = """
import json, sys
sys.argv = ["keelmq", *sys.argv[1:]]
from keelmq.cli.entry import main
try:
    main()
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""
LOAD: Final = """
import json, sys
from keelmq.cli.app import SUMMARIES
from keelmq.cli.lazy import LazyCommand
first_users = {}
for module in SUMMARIES:
    LazyCommand(module, "").load()
    for name in set(sys.argv[1:]).intersection(sys.modules):
        first_users.setdefault(name, module)
print(json.dumps(first_users))
"""
START: Final = frozenset(
    {
        "keelmq",
        "keelmq.cli",
        "keelmq.cli.app",
        "keelmq.cli.contexts",
        "keelmq.cli.entry",
        "keelmq.cli.lazy",
        "keelmq.cli.output",
        "keelmq.cli.parameters",
        "keelmq.errors",
        "keelmq.printable",
        "keelmq.version",
    }
)
OF_TOPIC: Final = frozenset(
    {"limits", *(f"cli.{name}" for name in ("messages", "messages.topic", "complete", "sizes", "times"))}
)
NETWORK: Final = frozenset({"asyncio", "ssl", "httptools", "sqlalchemy", "cryptography", "opentelemetry"})
PRINTING: Final = frozenset({"rich.console", "rich.table", "typer.rich_utils", "pydantic", "pydantic_core"})
OF_NO_REQUEST: Final = frozenset({"crc32c", "zstandard", "cryptography", "sqlalchemy", "opentelemetry", "boto3"})
PACKAGES: Final = frozenset(
    {"keelmq", "typer", "shellingham", "annotated_doc", "rich", "msgspec", "typing_extensions", "httptools"}
    | {"cython_runtime"}
)
"""Everything that is imported on the way to a request and is no part of Python."""
MODULES_MAX: Final = 210
REQUEST_MODULES_MAX: Final = 320
"""Bounds of all modules, Python's own included, in a command that asks no node and in one that does. With pydantic and
rich there were 340 in `keelmq --help` and 390 in `keelmq topic list`.
"""
TOPICS: Final = json.dumps({"topics": [{"topic": "orders", "queues": 1, "type": "any", "retention_ms": -1}]})


def imported(tmp_path: Path, *arguments: str) -> frozenset[str]:
    """Return the modules that a process of the command has imported at its end."""
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    command = [sys.executable, "-c", RUN, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return frozenset(json.loads(done.stderr.splitlines()[-1]))


def own(modules: frozenset[str]) -> set[str]:
    return {each for each in modules if each.split(".")[0] == "keelmq"}


def test_the_version_needs_no_command(tmp_path: Path) -> None:
    modules = imported(tmp_path, "--version")
    assert own(modules) == START
    assert modules & (NETWORK | PRINTING) == set()
    assert len(modules) <= MODULES_MAX


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (("--help",), set()),
        (("topic", "--help"), OF_TOPIC),
        (("topic", "list", "--help"), OF_TOPIC),
        (("context", "list", "--json"), {"cli.context"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_command_that_asks_no_node_imports_itself_alone(tmp_path: Path, arguments: list[str], more: Set[str]) -> None:
    modules = imported(tmp_path, *arguments)
    assert own(modules) == START | {f"keelmq.{name}" for name in more}
    assert modules & (NETWORK | PRINTING) == set()
    assert len(modules) <= MODULES_MAX


class Node(BaseHTTPRequestHandler):
    """A node that has one topic."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(TOPICS)))
        self.end_headers()
        self.wfile.write(TOPICS.encode())

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def node() -> Iterator[str]:
    """URL of a node."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Node) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_command_that_asks_a_node_imports_what_a_request_needs(tmp_path: Path, node: str) -> None:
    modules = imported(tmp_path, "topic", "list", "--json", "--servers", node)
    assert "keelmq.transport.connection" in modules
    assert modules & (PRINTING | OF_NO_REQUEST) == set()
    foreign = {name.split(".")[0] for name in modules} - sys.stdlib_module_names
    assert {name for name in foreign if not name.startswith("_")} <= PACKAGES
    assert len(modules) <= REQUEST_MODULES_MAX
    assert own(modules) & {"keelmq.admin.users", "keelmq.admin.definitions", "keelmq.log.log_events"} == set()


def test_no_command_imports_the_network_before_it_runs(tmp_path: Path) -> None:
    """The help of a command, and its completion, need its options alone."""
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    command = [sys.executable, "-c", LOAD, *sorted(NETWORK)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    first_users: dict[str, str] = json.loads(done.stdout)
    assert first_users == {}


@pytest.mark.parametrize("module", SUMMARIES)
def test_a_listed_command_says_what_its_own_help_says(module: str) -> None:
    listed = LazyCommand(module, SUMMARIES[module])
    command = listed.load()
    assert command.name == listed.name
    first = (command.help or "").split("\n\n")[0]
    assert " ".join(first.split()) == SUMMARIES[module]


def test_the_listed_commands_are_those_of_the_command() -> None:
    names = [module.rpartition(".")[2] for module in SUMMARIES]
    assert list(getattr(get_command(app), "commands", ())) == names
