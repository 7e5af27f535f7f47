"""A command of `keelmq cert` that fails says why and what to do, and changes nothing."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, x25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from keelmq.cli.security.authority_directory import make_authority_in
from keelmq.cli.security.certificate_files import read
from keelmq.errors import KeelMQError
from tests.certificates import Authority
from tests.unit.client.test_cert import NODE_1, keelmq

NODE: Final = ("node", "pki", *NODE_1)
CLIENT: Final = ("client", "pki", "--name", "billing")
PEM: Final = Encoding.PEM
PKCS8: Final = PrivateFormat.PKCS8


def snapshot(directory: Path) -> dict[str, Any]:
    """Return content, mode and inode of everything in the directory; a file that was only rewritten differs."""
    found: dict[str, Any] = {}
    for path in (directory, *sorted(directory.rglob("*"))):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        times = () if path.is_dir() else (status.st_ino, status.st_mtime_ns)
        found[str(path)] = (status.st_mode, times, content)
    return found


def void(*_: object) -> None:
    """Return nothing, for preparations of one expression."""


def renamed(pki: Path, stem: str) -> None:
    keelmq(*CLIENT)
    for ending in ("crt", "key"):
        (pki / f"client-billing.{ending}").rename(pki / f"{stem}.{ending}")


def expired(pki: Path) -> None:
    for name in ("ca.crt", "ca.key"):
        (pki / name).unlink()
    make_authority_in(pki, "Old", 30, datetime.now(UTC) - timedelta(days=31))


def in_the_future(pki: Path) -> None:
    for name in ("ca.crt", "ca.key"):
        (pki / name).unlink()
    make_authority_in(pki, "New", 30, datetime.now(UTC) + timedelta(days=2))


def no_authority(pki: Path) -> None:
    keelmq(*NODE)
    for name in ("crt", "key"):
        (pki / f"ca.{name}").write_bytes((pki / f"node-1.{name}").read_bytes())
        (pki / f"node-1.{name}").unlink()


def encrypted(pki: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    (pki / "ca.key").write_bytes(key.private_bytes(PEM, PKCS8, BestAvailableEncryption(b"x")))


def unable_to_sign(pki: Path) -> None:
    (pki / "ca.key").write_bytes(x25519.X25519PrivateKey.generate().private_bytes(PEM, PKCS8, NoEncryption()))


def foreign_key(pki: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    (pki / "ca.key").write_bytes(key.private_bytes(PEM, PKCS8, NoEncryption()))


def unreadable(pki: Path) -> None:
    (pki / "ca.key").unlink()
    (pki / "ca.key").mkdir()  # for root too


def large(pki: Path) -> None:
    (pki / "ca.crt").write_bytes(bytes(2 << 20))


def dangling(pki: Path) -> None:
    (pki / "node-1.key").symlink_to("nowhere")


def made(*arguments: str) -> Callable[[Path], None]:
    """Return a preparation that runs a command."""
    return lambda pki: void(keelmq(*arguments))


def without(name: str, *arguments: str) -> Callable[[Path], None]:
    """Return a preparation that runs a command, and then removes a file."""

    def prepare(pki: Path) -> None:
        if arguments:
            keelmq(*arguments)
        (pki / name).unlink()

    return prepare


def named_twice(pki: Path) -> None:
    """Leave a certificate that names two nodes."""
    keelmq(*NODE)
    other = Authority().issue(pki, 9, uris=("keelmq://shop/node/1", "keelmq://shop/node/2"))
    (pki / "node-1.crt").write_bytes(Path(other.certificate_file).read_bytes())


def then(change: Callable[[Path], None]) -> Callable[[Path], None]:
    """Return a preparation that makes the node's certificate before the change."""

    def prepare(pki: Path) -> None:
        keelmq(*NODE)
        change(pki)

    return prepare


class Refusal(NamedTuple):
    what: str
    prepare: Callable[[Path], None] | None
    command: tuple[str, ...]
    says: str
    code: str = "file_unusable"
    exit_code: int = 1


REFUSALS: Final = [
    Refusal("an authority again", None, ("ca", "pki"), "another directory", "file_exists"),
    Refusal("an authority's key alone", without("ca.crt"), ("ca", "pki"), "another directory", "file_exists"),
    Refusal("an authority's certificate alone", without("ca.key"), ("ca", "pki"), "another directory", "file_exists"),
    Refusal("a name of nothing", None, ("ca", "p2", "--name", " "), "printable characters", "invalid_request", 2),
    Refusal("a name of two lines", None, ("ca", "p2", "--name", "a\nb"), "printable", "invalid_request", 2),
    Refusal("a long name", None, ("ca", "p2", "--name", "a" * 65), "1-64", "invalid_request", 2),
    Refusal("no directory above", None, ("ca", "no/where"), "make the directory above it first"),
    Refusal("a file as directory", None, ("ca", "pki/ca.crt"), "Not a directory"),
    Refusal("a node again", made(*NODE), NODE, "give --renew", "file_exists"),
    Refusal("a node whose command was interrupted", without("node-1.crt", *NODE), NODE, "give --renew", "file_exists"),
    Refusal("a node without its key", without("node-1.key", *NODE), NODE, "put the key beside it", "file_exists"),
    Refusal("a key that leads nowhere", dangling, NODE, "give --renew", "file_exists"),
    Refusal("an application again", made(*CLIENT), CLIENT, "give --renew", "file_exists"),
    Refusal("no authority", None, ("node", "p2", *NODE_1), "keelmq cert ca p2 makes an authority"),
    Refusal("no key of the authority", without("ca.key"), NODE, "where the key of the authority is kept"),
    Refusal("an unreadable key", unreadable, NODE, "ca.key cannot be read: Is a directory"),
    Refusal("a key that is none", lambda pki: void((pki / "ca.key").write_text("x")), NODE, "no private key in PEM"),
    Refusal("an encrypted key", encrypted, NODE, "ca.key is encrypted"),
    Refusal("a key that cannot sign", unable_to_sign, NODE, "signs no certificates"),
    Refusal("the key of another authority", foreign_key, NODE, "is not the key of"),
    Refusal("no certificate", lambda pki: void((pki / "ca.crt").write_text("x")), NODE, "no certificate in PEM form"),
    Refusal("a large file", large, NODE, "has more than 1048576 bytes"),
    Refusal("an authority that has ended", expired, NODE, "make another authority in another directory"),
    Refusal("an authority of the future", in_the_future, CLIENT, "check the clock"),
    Refusal("a node as authority", no_authority, CLIENT, "is no authority"),
    Refusal("a cluster of two words", None, (*NODE[:3], "a b", *NODE[4:]), "A-Z a-z", "invalid_request", 2),
    Refusal("a host that is none", None, (*NODE, "--host", "a:1"), "neither a host name nor", "invalid_request", 2),
    Refusal("a name with a slash", None, (*CLIENT[:3], "../x"), "are allowed", "invalid_request", 2),
    Refusal("a name that is an option", None, ("client", "pki", "--name=-x"), "are allowed", "invalid_request", 2),
    Refusal("a hidden name", None, (*CLIENT[:3], ".x"), "are allowed", "invalid_request", 2),
    Refusal("renewing nothing", None, (*NODE, "--renew"), "without --renew the command makes"),
    Refusal("renewing without the key", without("node-1.key", *NODE), (*NODE, "--renew"), "node-1.key cannot be read"),
    Refusal(
        "renewing for another cluster",
        made(*NODE),
        (*NODE[:3], "shpo", *NODE[4:], "--renew"),
        "names keelmq://shop/node/1, not keelmq://shpo/node/1",
        "names_differ",
    ),
    Refusal(
        "renewing one with two names",
        named_twice,
        (*NODE, "--renew"),
        "names keelmq://shop/node/1, keelmq://shop/node/2, not",
        "names_differ",
    ),
    Refusal(
        "renewing an application for another one",
        lambda pki: renamed(pki, "client-other"),
        ("client", "pki", "--name", "other", "--renew"),
        "names billing, not other",
        "names_differ",
    ),
    Refusal(
        "renewing with the key of another authority",
        then(foreign_key),
        (*NODE, "--renew"),
        "is not the key of",
    ),
    Refusal(
        "renewing with an authority that has ended",
        then(expired),
        (*NODE, "--renew"),
        "ended on",
    ),
    Refusal("showing a key", None, ("show", "pki/ca.crt", "pki/ca.key"), "ca.key has no certificate in PEM form"),
    Refusal("showing nothing", None, ("show", "pki/none.crt"), "No such file"),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.what)
def test_a_refusal_says_why_and_changes_nothing(
    refusal: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keelmq("ca", "pki")
    if refusal.prepare is not None:
        refusal.prepare(tmp_path / "pki")
    before = snapshot(tmp_path)
    told = keelmq(*refusal.command, code=refusal.exit_code)
    assert told.stdout == ""
    assert told.stderr.startswith("error: ")
    assert refusal.says in told.stderr
    assert told.stderr.endswith(f" ({refusal.code})\n")
    error = json.loads(keelmq(*refusal.command, "--json", code=refusal.exit_code).stderr)["error"]
    assert (error["code"], error["status"], error["retryable"]) == (refusal.code, 0, False)
    assert refusal.says in error["detail"]
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("option", [("--days", "0"), ("--days", "36501"), ("--node-id", "0"), ("--node-id", "x")])
def test_numbers_have_limits(option: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keelmq("ca", "pki")
    before = snapshot(tmp_path)
    assert option[0] in keelmq(*NODE, *option, code=2).stderr
    assert snapshot(tmp_path) == before


def test_show_fails_when_a_certificate_is_not_valid_now(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    for name, begins in (("old", now - timedelta(days=30, hours=12)), ("new", now), ("next", now + timedelta(days=2))):
        make_authority_in(tmp_path / name, name, 30, begins)
    files = {name: tmp_path / name / "ca.crt" for name in ("old", "new", "next")}
    assert keelmq("show", files["new"]).stderr == ""
    told = keelmq("show", *files.values(), code=1)
    assert [each in told.stdout for each in ("CN=old", "CN=new", "CN=next")] == [True, True, True]
    expired, early = told.stderr.splitlines()
    assert expired == f"warning: {files['old']}: CN=old has expired"
    assert early.startswith(f"warning: {files['next']}: CN=next is not valid before ")
    shown = json.loads(keelmq("show", files["old"], "--json", code=1).stdout)
    assert (shown["valid"], shown["certificates"][0]["days_left"]) == (False, -1)


def test_what_an_interrupted_command_leaves_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keelmq("ca", "pki")
    without("node-1.crt", *NODE)(tmp_path / "pki")
    key = Path("pki/node-1.key").read_bytes()
    keelmq(*NODE, "--renew")
    assert Path("pki/node-1.key").read_bytes() == key
    assert Path("pki/node-1.crt").exists()


def test_a_certificate_that_is_not_there_needs_no_directory(tmp_path: Path) -> None:
    with pytest.raises(KeelMQError) as told:
        read(tmp_path / "none.crt")
    assert told.value.detail == f"{tmp_path}/none.crt cannot be read: No such file or directory"
