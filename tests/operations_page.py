"""docs/operations.md, followed word for word on nodes of this machine, or on hosts that are reached by ssh."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.e2e.deployment import OPTIONS, toml_lines
from tests.followed_page import files_and_steps, require_as_written, run, script_of
from tests.lose_host import lose
from tests.requirements import REPOSITORY

PAGE: Final = REPOSITORY / "docs" / "operations.md"
ROOT: Final = "/srv/keelmq"
NODES: Final = (1, 2, 3)
SSH: Final = re.compile(r'^ssh = "deploy@10\.0\.0\.(\d)"\n', re.MULTILINE)
ADDRESS: Final = re.compile(r"10\.0\.0\.(\d):(7081|7091)")
LOST: Final = re.compile(r"^# (?:the hosts? of nodes? |all hosts)(.*)")
BACKUP: Final = "deploy/keelmq-deploy backup "
BUNDLE: Final = re.compile(r" --bundle \S+")


class Surroundings(NamedTuple):
    """Differences from the page: the places of its hosts, and what their tables have in addition."""

    address: Callable[[int, int], str]
    """Address of a host's port 7081 or 7091."""
    cluster: dict[str, Any]
    ssh: Callable[[int], str] | None
    """The destination of a host; None where all nodes are processes of this machine."""
    has_bundles: bool
    """Tells whether `dist` and `next` have a bundle each; otherwise the hosts have the program already."""


def follow(directory: Path, surroundings: Surroundings) -> None:
    """Do what the page says in this directory, which stands for a clone. Raises AssertionError where it is wrong."""
    (directory / "deploy").symlink_to(REPOSITORY / "deploy")
    (directory / ".venv").symlink_to(sys.prefix)
    files, steps = files_and_steps(PAGE, ("toml",))
    hosts = directory / "hosts"
    for name, text in files.items():
        (directory / name).write_text(_inventory(text, hosts, surroundings))
    nodes = {number: hosts / f"node{number}" for number in NODES}
    steps = [step._replace(commands=[_command(each, nodes, surroundings) for each in step.commands]) for step in steps]
    own = {name: value for name, value in os.environ.items() if not name.startswith("KEELMQ_")}
    try:
        output = run(directory, script_of(steps), {**own, "PYTHONPATH": str(REPOSITORY)})
        require_as_written(steps, output)
    finally:
        lose([*nodes.values(), directory / "hosts-drill" / "node1"])


def _inventory(text: str, hosts: Path, surroundings: Surroundings) -> str:
    text = _adapted(text, surroundings)
    ssh = surroundings.ssh
    text, found = SSH.subn(lambda match: f'ssh = "{ssh(int(match[1]))}"\n' if ssh else "", text)
    assert found == text.count("[[node]]")
    text = text.replace(ROOT, str(hosts))
    text = text.replace("[cluster]\n", "\n".join(["[cluster]", *toml_lines(surroundings.cluster), ""]))
    return text.replace("[options]\n", "\n".join(["[options]", *toml_lines(OPTIONS), ""]))


def _command(command: str, nodes: dict[int, Path], surroundings: Surroundings) -> str:
    lost = LOST.match(command)
    if lost is not None:
        numbers = [int(number) for number in re.findall(r"\d", lost[1])] or list(nodes)
        return " ".join([sys.executable, "-m", "tests.lose_host", *(str(nodes[number]) for number in numbers)])
    assert not command.startswith("#"), f"nothing does what this says: {command}"
    if command.startswith(BACKUP):
        command = f"{command} && {command}"  # those who follow the page have more than one soon
    return _adapted(command if surroundings.has_bundles else BUNDLE.sub("", command), surroundings)


def _adapted(text: str, surroundings: Surroundings) -> str:
    return ADDRESS.sub(lambda match: surroundings.address(int(match[1]), int(match[2])), text)
