"""Tokens come from where the user put them, and go to nodes that can be trusted with them only."""

from pathlib import Path
from typing import Any

import pytest

from keelmq.errors import InvalidRequest
from keelmq.transport.credentials import FILE_LOOKED_AT_S, Credentials, TokenFile
from keelmq.transport.http1 import Origin

NAMED = Origin.parse("http://10.0.0.1:7081")
ELSEWHERE = Origin.parse("http://10.0.0.9:7081")


def test_without_a_token_nothing_is_shown() -> None:
    credentials = Credentials(None, [NAMED])
    assert credentials.header(NAMED) == ""
    assert "KEELMQ_TOKEN_FILE" in credentials.why_none(NAMED)


@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.1:7081", "https://10.0.0.9:7081", "http://127.0.0.1:9", "http://localhost:1", "http://[::1]:1"],
)
def test_a_node_that_was_named_or_verified_or_is_here_gets_the_token(url: str) -> None:
    credentials = Credentials("secret", [NAMED])
    assert credentials.header(Origin.parse(url)) == "Authorization: Bearer secret\r\n"
    assert credentials.why_none(Origin.parse(url)) == ""


@pytest.mark.parametrize("url", ["http://10.0.0.9:7081", "http://10.0.0.1:7082", "http://localhost.evil.example:7081"])
def test_a_node_that_somebody_else_named_gets_none_without_tls(url: str) -> None:
    credentials = Credentials("secret", [NAMED])
    assert credentials.header(Origin.parse(url)) == ""
    assert "was not sent to" in credentials.why_none(Origin.parse(url))
    assert "secret" not in credentials.why_none(Origin.parse(url))


def test_a_function_is_asked_for_every_request() -> None:
    tokens = iter(("one", "two"))
    credentials = Credentials(lambda: next(tokens), [NAMED])
    assert credentials.header(ELSEWHERE) == "", "it is not asked in vain"
    assert [credentials.header(NAMED) for _ in range(2)] == [f"Authorization: Bearer {t}\r\n" for t in ("one", "two")]


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "caf\u00e9", "x\r\nHost: evil"])
def test_a_token_that_cannot_stand_in_a_header_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Credentials(token, [NAMED])
    assert not token or token not in str(refused.value)
    with pytest.raises(InvalidRequest):
        Credentials(lambda: token, [NAMED]).header(NAMED)


def test_the_environment_names_a_token_or_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KEELMQ_TOKEN", "of-environment")
    assert Credentials(None, [NAMED]).header(NAMED) == "Authorization: Bearer of-environment\r\n"
    assert Credentials("given", [NAMED]).header(NAMED) == "Authorization: Bearer given\r\n"
    file = tmp_path / "token"
    file.write_text("of-file\n")
    monkeypatch.setenv("KEELMQ_TOKEN_FILE", str(file))
    with pytest.raises(InvalidRequest, match="give one of them"):
        Credentials(None, [NAMED])
    monkeypatch.delenv("KEELMQ_TOKEN")
    assert Credentials(None, [NAMED]).header(NAMED) == "Authorization: Bearer of-file\r\n"


def test_a_token_file_is_read_again_and_survives_its_replacement(tmp_path: Path) -> None:
    now_s, file = [100.0], tmp_path / "token"
    source = TokenFile(file, lambda: now_s[0])
    with pytest.raises(InvalidRequest, match="No such file"):
        source()
    file.write_text("first\nsecond line\n")
    assert source() == "first"
    file.write_text("next")
    assert source() == "first", "not looked at yet"
    now_s[0] += FILE_LOOKED_AT_S
    assert source() == "next"
    file.unlink()
    now_s[0] += FILE_LOOKED_AT_S
    assert source() == "next"
    for written in ("", "\n", "half of\x00something"):  # a shell empties the file before it writes
        file.write_text(written)
        now_s[0] += FILE_LOOKED_AT_S
        assert source() == "next"
    file.write_text("last")
    now_s[0] += FILE_LOOKED_AT_S
    assert source() == "last"


def test_a_token_file_that_never_had_a_token_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("")
    with pytest.raises(InvalidRequest, match="no token"):
        TokenFile(file)()


async def _token_of_a_coroutine() -> str:
    return "token"


@pytest.mark.parametrize("source", [_token_of_a_coroutine, 7, b"token"])
def test_what_is_neither_a_token_nor_a_plain_function_is_refused(source: Any) -> None:
    with pytest.raises(InvalidRequest, match="token"):
        Credentials(source, [NAMED])


@pytest.mark.parametrize("token", [None, b"token", 7])
def test_a_function_that_returns_no_text_is_refused(token: Any) -> None:
    with pytest.raises(InvalidRequest, match="token"):
        Credentials(lambda: token, [NAMED]).header(NAMED)
