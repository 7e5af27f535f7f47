"""The secret that the nodes of a cluster share, and the proofs of knowing it.

The secret file has one secret per line: an opener proves the first, and any of them is accepted. So the secret can be
exchanged without a moment at which nodes reject each other: add the new one as second line on all nodes, then make it
the first, then the only one, with a restart of each node after each step.
"""

import hmac
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SECRET_BYTES_MIN: Final = 32
SECRETS_MAX: Final = 4
FILE_BYTES_MAX: Final = 4096
HOW_TO_MAKE: Final = "make one, the same for all nodes: (umask 077; head -c 32 /dev/urandom | base64 > FILE)"


class SecretError(Exception):
    """The secret file cannot be used; the message says why and what to do."""


def read_peer_secrets(file: Path) -> tuple[bytes, ...]:
    """Return the secrets of a file that only its owner may access. Raises SecretError when the file is unreadable or
    invalid.
    """
    try:
        with file.open("rb") as stream:
            mode = file.stat().st_mode
            content = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SecretError(f"{file}: {error.strerror}; {HOW_TO_MAKE}") from None
    except ValueError as error:  # a name that no file can have
        raise SecretError(f"{str(file)!r}: {error}; {HOW_TO_MAKE}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise SecretError(f"{file}: users other than its owner may read or write the file; run chmod 600 {file}")
    secrets = tuple(line.strip() for line in content.splitlines() if line.strip())
    if not secrets or len(content) > FILE_BYTES_MAX or len(secrets) > SECRETS_MAX:
        raise SecretError(f"{file}: the file must have 1 to {SECRETS_MAX} lines with one secret each; {HOW_TO_MAKE}")
    if any(len(secret) < SECRET_BYTES_MIN for secret in secrets):
        raise SecretError(f"{file}: a secret must have at least {SECRET_BYTES_MIN} characters; {HOW_TO_MAKE}")
    return secrets


def prove(secret: bytes, statement: bytes) -> bytes:
    """Return the HMAC-SHA256 of the statement: 32 bytes that can only be made with the secret."""
    return hmac.digest(secret, statement, "sha256")


def find_secret(secrets: Sequence[bytes], statement: bytes, proof: bytes) -> bytes | None:
    """Return the secret by which `statement` was proven; None if none of them proves it."""
    return next((secret for secret in secrets if hmac.compare_digest(prove(secret, statement), proof)), None)
