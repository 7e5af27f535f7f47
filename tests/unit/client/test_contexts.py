"""Contexts of the command: the file, and which context a command uses."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from keelmq.cli import contexts
from keelmq.cli.app import app
from keelmq.cli.contexts import Context, Contexts
from keelmq.errors import InvalidRequest

TOKEN = "keelmq_a-token-that-must-not-be-shown-anywhere"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in (*contexts.CLIENT_VARIABLES, contexts.VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    assert TOKEN not in result.output
    return result.output


def document(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def test_contexts_are_added_used_shown_and_removed(home: Path) -> None:
    token = home / "token"
    token.write_text(TOKEN)
    run("context", "add", "test", "--servers", "http://127.0.0.1:1")
    run("context", "add", "prod", "--servers", "https://mq:7081", "--ca-file", "ca.crt", "--token-file", str(token))
    shown = document("context", "show", "prod")
    assert shown == {
        "context": "prod",
        "current": False,
        "servers": "https://mq:7081",
        "ca_file": str(Path("ca.crt").absolute()),
        "token_file": str(token),
        "certificate_file": None,
        "key_file": None,
    }
    assert document("context", "show")["context"] == "test", "the first one is the current one"
    assert document("context", "use", "prod")["current"]
    listed = document("context", "list")["contexts"]
    assert [(each["context"], each["current"]) for each in listed] == [("prod", True), ("test", False)]
    assert "test" in run("context", "list")
    assert str(token) in run("context", "show")
    run("context", "remove", "prod")
    assert contexts.load() == Contexts(None, {"test": Context("http://127.0.0.1:1")})
    assert "context_not_found" in run("context", "show", code=1)
    for command in (("use",), ("show",), ("remove",)):
        assert "context_not_found" in run("context", *command, "prod", code=1)


def test_the_file_is_the_owners_alone_and_no_other_file_stays(home: Path) -> None:
    previous = os.umask(0)
    try:
        run("context", "add", "a", "--servers", "http://127.0.0.1:1")
        run("context", "add", "b", "--servers", "http://127.0.0.1:1")
    finally:
        os.umask(previous)
    (file,) = (home / "keelmq").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644])
def test_a_file_that_others_may_access_is_refused(home: Path, mode: int) -> None:
    run("context", "add", "a", "--servers", "http://127.0.0.1:1")
    contexts.path().chmod(mode)
    before = contexts.path().read_bytes()
    for command in (
        ("context", "list"),
        ("context", "use", "a"),
        ("context", "add", "b", "--servers", "http://127.0.0.1:1"),
        ("topic", "list"),
    ):
        assert "run chmod 600" in run(*command, code=2)
    assert contexts.path().read_bytes() == before
    assert contexts.path().stat().st_mode & 0o777 == mode


def test_a_file_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    run("context", "add", "a", "--servers", "http://127.0.0.1:1")
    owner = contexts.path().stat().st_uid
    status = os.stat_result((0o100600, 0, 0, 1, owner + 1, 0, 0, 0, 0, 0))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", lambda _: status)
        assert "belongs to another user" in run("context", "list", code=2)
    run("context", "list")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "nonsense",
        "[]",
        "{}",
        "[" * 100_000,
        '{"contexts":{"a":{}}}',
        '{"contexts":{"a":{"servers":1}}}',
        '{"contexts":{"a":{"servers":"http://127.0.0.1:1","token":"x"}}}',
        '{"contexts":{"a b":{"servers":"http://127.0.0.1:1"}}}',
        '{"contexts":{},"current":"a"}',
        '{"contexts":{},"current":[]}',
        " " * (contexts.FILE_BYTES_MAX + 1),
        b"\xff\xfe\x00",
    ],
)
def test_a_broken_file_is_an_error_and_is_kept(content: str | bytes) -> None:
    file = contexts.path()
    file.parent.mkdir()
    file.touch(mode=0o600)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    before = file.read_bytes()
    assert str(file) in run("context", "add", "b", "--servers", "http://127.0.0.1:1", code=2)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "servers"),
    [
        ("a b", "http://127.0.0.1:1"),
        ("x" * 65, "http://127.0.0.1:1"),
        ("a", "ftp://x"),
        ("a", ""),
        ("a/b", "http://h:1"),
    ],
)
def test_a_context_that_is_none_is_refused(home: Path, name: str, servers: str) -> None:
    run("context", "add", name, "--servers", servers, code=2)
    assert not contexts.path().exists()


def test_a_write_that_fails_leaves_the_former_content(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("context", "add", "a", "--servers", "http://127.0.0.1:1")
    before = contexts.path().read_bytes()

    def no_room(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    assert "No space left" in run("context", "add", "b", "--servers", "http://127.0.0.1:1", code=2)
    assert [file.read_bytes() for file in (home / "keelmq").iterdir()] == [before]


def using(
    monkeypatch: pytest.MonkeyPatch, servers_flag: bool = False, flag: str | None = None, **env: str
) -> str | None:
    for variable, value in env.items():
        monkeypatch.setenv(variable, value)
    contexts.FLAGS.set(contexts.Flags(context=flag))
    try:
        found = contexts.chosen(servers_flag)
    finally:
        contexts.FLAGS.set(contexts.Flags())
        for variable in env:
            monkeypatch.delenv(variable)
    return None if found is None else found.servers


def test_which_context_a_command_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert using(monkeypatch) is None
    two = Contexts("one", {"one": Context("http://one:1"), "two": Context("http://two:1")})
    contexts.save(two)
    assert using(monkeypatch) == "http://one:1"
    assert using(monkeypatch, KEELMQ_CONTEXT="two") == "http://two:1"
    assert using(monkeypatch, KEELMQ_CONTEXT="one", flag="two") == "http://two:1"
    assert using(monkeypatch, KEELMQ_SERVERS="http://x:1", flag="two") == "http://two:1"
    assert using(monkeypatch, KEELMQ_SERVERS="http://x:1", KEELMQ_CONTEXT="two") == "http://two:1"
    assert using(monkeypatch, servers_flag=True, flag="two") == "http://two:1", "for its token and its authorities"
    assert using(monkeypatch, servers_flag=True, KEELMQ_CONTEXT="two") is None, "an exported one is easily forgotten"
    for variable in contexts.CLIENT_VARIABLES:
        assert using(monkeypatch, False, None, **{variable: "x"}) is None, (
            "the current context is never mixed with variables"
        )
    assert using(monkeypatch, servers_flag=True) is None, "nor is its token shown to other servers"
    with pytest.raises(Exception, match="context three"):
        using(monkeypatch, flag="three")


def test_too_many_contexts_are_refused() -> None:
    many = Contexts(None, {f"c{number}": Context("http://h:1") for number in range(contexts.CONTEXTS_MAX)})
    with pytest.raises(InvalidRequest, match="1000 contexts already"):
        many.with_context("one-more", Context("http://h:1"))
    many.with_context("c1", Context("http://h:2"))


def test_the_default_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", value)
        assert contexts.path() == tmp_path / ".config" / "keelmq" / "contexts.json"
