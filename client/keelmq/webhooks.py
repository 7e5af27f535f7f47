"""Verification of checks for the service behind a producer group's `check_url`: is a check from the cluster, and new?

    @routes.post("/checks")
    async def check(request: web.Request) -> web.Response:
        body = await request.read()
        try:
            webhooks.verify(body, request.headers.get(webhooks.HEADER), SECRETS)
        except SignatureRefused as error:
            return web.Response(status=401, text=error.detail)
        asked = json.loads(body)
        return web.json_response({"decision": decision_of(asked["transaction_id"])})

The secrets are those of the nodes' `webhook_secret_file`.
"""

import hmac
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from keelmq.errors import InvalidRequest, SignatureRefused

HEADER: Final = "KeelMQ-Signature"
TOLERANCE_S: Final = 300
"""Seconds by which the time of a signature may differ from this machine's clock."""
HEADER_LENGTH_MAX: Final = 1_024
SECRET_BYTES_MIN: Final = 32
SECRETS_FILE_BYTES_MAX: Final = 4_096

_TIME: Final = re.compile(r"[0-9]{1,12}")
_SIGNATURE: Final = re.compile(r"[0-9a-f]{64}")


def verify(
    body: bytes,
    signature: str | None,
    secrets: str | bytes | Iterable[str | bytes],
    *,
    tolerance_s: float = TOLERANCE_S,
    now_s: float | None = None,
) -> int:
    """Return when the check was signed, in seconds since 1970, if one of `secrets` signed this body lately.

    `body` is what was received, before it is parsed; `signature` the header KeelMQ-Signature, None if there is none.
    Raises SignatureRefused when it is missing, is no signature, is not of these secrets and this body, or when its time
    differs by more than `tolerance_s` from `now_s`, by default the wall clock. Raises InvalidRequest when there are no
    secrets, or one has fewer than 32 bytes. Signatures are compared in constant time.

    Within the tolerance a check can be repeated by whoever heard it. Answer it by the state of the transaction, which
    makes a repetition harmless.
    """
    known = _secrets_of(secrets)
    signed_s, found = _parse(signature)
    signed = b"%d.%b" % (signed_s, body)
    matches = False
    for secret in known:
        expected = hmac.new(secret, signed, "sha256").hexdigest()
        for each in found:  # all of them: the time says nothing about which one matches
            matches |= hmac.compare_digest(expected, each)
    if not matches:
        raise _refused("it was made by none of these secrets, or for another body")
    now = time.time() if now_s is None else now_s
    if abs(now - signed_s) > tolerance_s:
        raise _refused(
            f"its time differs by {abs(now - signed_s):.0f} s from this machine's clock, more than {tolerance_s:g} s: "
            "the check is a repeated one, or a clock is wrong"
        )
    return signed_s


def read_secrets(file: str | Path) -> tuple[bytes, ...]:
    """Return the secrets of a file like the nodes' webhook_secret_file, one per line. Raises InvalidRequest."""
    try:
        with Path(file).open("rb") as stream:
            content = stream.read(SECRETS_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidRequest("invalid_request", f"secrets file {file}: {error.strerror}") from None
    if len(content) > SECRETS_FILE_BYTES_MAX:
        raise InvalidRequest("invalid_request", f"secrets file {file}: more than {SECRETS_FILE_BYTES_MAX} bytes")
    return tuple(_secrets_of([line.strip() for line in content.splitlines() if line.strip()]))


def _secrets_of(secrets: str | bytes | Iterable[str | bytes]) -> list[bytes]:
    listed = [secrets] if isinstance(secrets, str | bytes) else list(secrets)
    found = [each.encode() if isinstance(each, str) else each for each in listed]
    if not found or any(len(each) < SECRET_BYTES_MIN for each in found):
        raise InvalidRequest(
            "invalid_request", f"secrets: one or more, each of at least {SECRET_BYTES_MIN} bytes, without line ends"
        )
    return found


def _parse(signature: str | None) -> tuple[int, list[str]]:
    """Return time and signatures of a header. Members of other versions are left out. Raises SignatureRefused."""
    if not signature:
        raise _refused(f"the request has no header {HEADER}; the nodes need webhook_secret_file")
    if len(signature) > HEADER_LENGTH_MAX:
        raise _refused(f"it has more than {HEADER_LENGTH_MAX} characters")
    members = [part.strip().partition("=") for part in signature.split(",")]
    times = [value for name, _, value in members if name == "t"]
    found = [value for name, _, value in members if name == "v1"]
    if len(times) != 1 or not _TIME.fullmatch(times[0]):
        raise _refused("it has no time; it is of the form t=<seconds>,v1=<hex>")
    if not found or not all(_SIGNATURE.fullmatch(each) for each in found):
        raise _refused("it has no v1 of 64 hexadecimal digits; it is of the form t=<seconds>,v1=<hex>")
    return int(times[0]), found


def _refused(why: str) -> SignatureRefused:
    return SignatureRefused("signature_refused", f"the signature is refused: {why}")
