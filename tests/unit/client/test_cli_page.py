"""The `keelmq` command keeps its word: every command has --json and an example, and the page names them all."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import typer.main
from typer.core import TyperCommand, TyperGroup
from typer.testing import CliRunner

from keelmq.cli.app import app
from keelmq.cli.lazy import LazyCommand
from store import limits

PAGE: Final = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
ROOT: Final = typer.main.get_command(app)


def leaves(command: object, name: str = "") -> Iterator[tuple[str, TyperCommand]]:
    if isinstance(command, LazyCommand):
        command = command.load()
    if isinstance(command, TyperCommand):
        yield name, command
        return
    assert isinstance(command, TyperGroup)
    for child in command.commands:
        yield from leaves(command.commands[child], f"{name} {child}".strip())


COMMANDS: Final = dict(leaves(ROOT))
every_command: Final = pytest.mark.parametrize("name", sorted(COMMANDS))


def test_there_are_commands() -> None:
    assert {"send", "topic show", "message get", "message trace", "group clone-offsets"} <= COMMANDS.keys()


@every_command
def test_a_command_has_json_and_an_example(name: str) -> None:
    command = COMMANDS[name]
    assert "--json" in [option for parameter in command.params for option in parameter.opts]
    assert f"keelmq {name}" in (command.epilog or "")
    assert command.help


@every_command
def test_a_command_is_on_the_page(name: str) -> None:
    table = PAGE.split("| command | what |")[1].split("```console")[0]
    assert re.search(rf"`{name}[ `]", table), name


def test_the_commands_for_those_who_know_mqadmin_exist() -> None:
    table = PAGE.split("## For those who know mqadmin")[1]
    named = re.findall(r"`keelmq ([a-z]+(?: [a-z-]+)?)", table)
    assert len(named) > 20
    assert {each for each in named if each not in COMMANDS and each.split()[0] not in COMMANDS} == set()


@pytest.mark.parametrize(
    ("arguments", "usage"),
    [
        (["topic", "list", "--token-file", "t"], "keelmq --token-file FILE topic …"),
        (["send", "orders", "hi", "--context=prod"], "keelmq --context NAME send …"),
        (["auth", "user", "list", "--local-time"], "keelmq --local-time auth …"),
    ],
)
def test_an_option_that_belongs_before_the_command_is_told_so(arguments: list[str], usage: str) -> None:
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 2
    assert f"goes before the command: {usage}" in " ".join(answer.output.split())
    answer = CliRunner().invoke(app, ["context", "add", "prod", "--ca-file"])
    assert "goes before" not in answer.output
    assert "No such option: --bogus" in CliRunner().invoke(app, ["topic", "list", "--bogus"]).output


def test_the_help_of_a_setting_tells_what_a_new_topic_and_a_new_group_have() -> None:
    def told(name: str, option: str) -> str:
        return next(str(getattr(each, "help", "")) for each in COMMANDS[name].params if option in each.opts)

    days = limits.DEFAULT_RETENTION_MS // 86_400_000
    for option, default in (("--queues", limits.DEFAULT_QUEUES), ("--retention-ms", f"{days}d"), ("--type", "any")):
        assert told("topic create", option).endswith(f"Default of a new topic: {default}."), option
    assert told("group settings", "--max-attempts").endswith(f"Default of a new group: {limits.RETRY_MAX_ATTEMPTS}.")
    minutes = [*range(1, 11), 20, 30, 60, 120]
    assert (10_000, 30_000, *(60_000 * each for each in minutes)) == limits.RETRY_DELAYS_MS
    assert told("group settings", "--delays").endswith("10s, 30s, each minute from 1m to 10m, 20m, 30m, 1h, 2h.")
