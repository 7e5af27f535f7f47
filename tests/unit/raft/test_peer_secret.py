"""The file with the secret of a cluster is read and checked."""

from pathlib import Path

import pytest

from raft.peers.secret import SECRETS_MAX, SecretError, find_secret, prove, read_peer_secrets

SECRET = "s" * 32


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    file = path / "peer_secret"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_the_first_line_is_the_own_one(tmp_path: Path) -> None:
    assert read_peer_secrets(write(tmp_path, f"{SECRET}\n\n {'t' * 40} \n")) == (SECRET.encode(), b"t" * 40)


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("", 0o600, "must have 1 to 4 lines"),
        ("\n".join([SECRET] * (SECRETS_MAX + 1)), 0o600, "must have 1 to 4 lines"),
        ("x" * 5000, 0o600, "must have 1 to 4 lines"),
        (SECRET[1:], 0o600, "at least 32 characters"),
        (SECRET, 0o644, "chmod 600"),
        (SECRET, 0o620, "chmod 600"),
    ],
)
def test_what_is_wrong_is_said_with_the_next_step(tmp_path: Path, text: str, mode: int, said: str) -> None:
    with pytest.raises(SecretError, match=said):
        read_peer_secrets(write(tmp_path, text, mode))


def test_a_file_that_is_not_there_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match=r"No such file.*head -c 32 /dev/urandom"):
        read_peer_secrets(tmp_path / "none")


def test_only_who_knows_the_secret_proves_it() -> None:
    proof = prove(b"a" * 32, b"said")
    assert find_secret([b"b" * 32, b"a" * 32], b"said", proof) == b"a" * 32
    assert find_secret([b"b" * 32], b"said", proof) is None
    assert find_secret([b"a" * 32], b"said other", proof) is None
    assert find_secret([b"a" * 32], b"said", b"") is None
