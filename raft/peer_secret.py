"""The secret that the nodes of a cluster share, and the proofs of knowing it.

A file with one secret per line: whoever opens a connection proves the first, and any of them is accepted. So it is
exchanged without a moment at which nodes do not understand each other: the new one as second line on all nodes, then
as first, then alone, with a restart of each node after each step.
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
    """The file cannot be used; the message says why and what to do."""


def read_peer_secrets(file: Path) -> tuple[bytes, ...]:
    """The secrets of a file that only its owner may read. SecretError otherwise."""
    try:
        with file.open("rb") as stream:
            mode = file.stat().st_mode
            content = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SecretError(f"{file}: {error.strerror}; {HOW_TO_MAKE}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise SecretError(f"{file}: others than its owner may read or write it; chmod 600 {file}")
    secrets = tuple(line.strip() for line in content.splitlines() if line.strip())
    if not secrets or len(content) > FILE_BYTES_MAX or len(secrets) > SECRETS_MAX:
        raise SecretError(f"{file}: not between 1 and {SECRETS_MAX} lines with a secret each; {HOW_TO_MAKE}")
    if any(len(secret) < SECRET_BYTES_MIN for secret in secrets):
        raise SecretError(f"{file}: a secret has at least {SECRET_BYTES_MIN} characters; {HOW_TO_MAKE}")
    return secrets


def prove(secret: bytes, statement: bytes) -> bytes:
    """32 bytes that only who knows the secret can make."""
    return hmac.digest(secret, statement, "sha256")


def find_secret(secrets: Sequence[bytes], statement: bytes, proof: bytes) -> bytes | None:
    """The secret by which `statement` was proven; None if it was by none of them."""
    return next((secret for secret in secrets if hmac.compare_digest(prove(secret, statement), proof)), None)
