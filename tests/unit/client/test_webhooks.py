"""Signatures of checks, as the service behind a check_url verifies them."""

import hmac
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.security.webhook_signer import HEADER, signature
from keelmq import webhooks
from keelmq.errors import InvalidRequest, SignatureRefused

OLD, NEW = b"o" * 40, b"n" * 40
BODY = b'{"transaction_id":"t"}'
NOW_S = 1_700_000_000


def made(*secrets: bytes, body: bytes = BODY, now_s: int = NOW_S) -> str:
    """Sign as a node signs."""
    return signature(secrets, body, now_s)


def test_the_broker_and_the_sdk_mean_the_same() -> None:
    assert webhooks.HEADER == HEADER
    assert webhooks.verify(BODY, made(OLD), OLD, now_s=NOW_S) == NOW_S
    by_hand = hmac.new(OLD, b"1700000000." + BODY, "sha256").hexdigest()
    assert made(OLD) == f"t=1700000000,v1={by_hand}"


@pytest.mark.parametrize("known", [OLD, NEW, [OLD, NEW], [NEW], "o" * 40])
def test_two_secrets_while_they_are_exchanged(known: str | bytes | list[bytes]) -> None:
    webhooks.verify(BODY, made(NEW, OLD), known, now_s=NOW_S)


def test_one_signature_and_two_known_secrets() -> None:
    for secret in (OLD, NEW):
        webhooks.verify(BODY, made(secret), [OLD, NEW], now_s=NOW_S)


@pytest.mark.parametrize("difference_s", [-300, 0, 300])
def test_a_time_within_the_tolerance(difference_s: int) -> None:
    webhooks.verify(BODY, made(OLD), OLD, now_s=NOW_S + difference_s)


@pytest.mark.parametrize("difference_s", [-301, 301, 10**9])
def test_an_old_check_is_refused_and_one_of_the_future_too(difference_s: int) -> None:
    with pytest.raises(SignatureRefused, match=r"a repeated one, or a clock is wrong"):
        webhooks.verify(BODY, made(OLD), OLD, now_s=NOW_S + difference_s)
    webhooks.verify(BODY, made(OLD), OLD, now_s=NOW_S + difference_s, tolerance_s=abs(difference_s))


def test_the_wall_clock_is_the_default() -> None:
    with pytest.raises(SignatureRefused, match="a repeated one"):
        webhooks.verify(BODY, made(OLD), OLD)


def test_another_secret_body_or_time_is_refused() -> None:
    header = made(OLD)
    for body, text, secret in (
        (BODY, header, NEW),
        (BODY + b" ", header, OLD),
        (b"", header, OLD),
        (BODY, header.replace("t=1700000000", "t=1700000001"), OLD),
        (BODY, header[:-1] + ("0" if header[-1] != "0" else "1"), OLD),
    ):
        with pytest.raises(SignatureRefused, match="by none of these secrets, or for another body") as raised:
            webhooks.verify(body, text, secret, now_s=NOW_S)
        assert raised.value.code == "signature_refused"
        assert OLD.decode() not in str(raised.value)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "v1=" + "0" * 64,
        "t=1700000000",
        "t=1700000000,v1=",
        "t=1700000000,v1=" + "0" * 63,
        "t=1700000000,v1=" + "A" * 64,
        "t=1700000000,v2=" + "0" * 64,
        "t=1,t=1700000000,v1=" + "0" * 64,
        "t=-1,v1=" + "0" * 64,
        "t=１,v1=" + "0" * 64,
        "t=" + "1" * 13 + ",v1=" + "0" * 64,
        "t=1700000000,v1=" + "é" * 64,
        "t=1700000000," + ",".join(["v1=" + "0" * 64] * 20),
    ],
)
def test_what_is_no_signature_is_refused(header: str | None) -> None:
    with pytest.raises(SignatureRefused, match="the signature is refused"):
        webhooks.verify(BODY, header, OLD, now_s=NOW_S)


@given(st.text(max_size=200))
def test_no_header_causes_another_error(header: str) -> None:
    with pytest.raises(SignatureRefused):
        webhooks.verify(BODY, header, OLD, now_s=NOW_S)


def test_signatures_of_later_versions_are_left_out() -> None:
    webhooks.verify(BODY, f"{made(OLD)},v2=abc", OLD, now_s=NOW_S)


@pytest.mark.parametrize("secrets", [[], b"", "short", [OLD, b"short"]])
def test_secrets_must_be_some(secrets: str | bytes | list[bytes]) -> None:
    with pytest.raises(InvalidRequest, match="secrets: "):
        webhooks.verify(BODY, made(OLD), secrets, now_s=NOW_S)


def test_secrets_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    file.write_bytes(OLD + b"\n\n" + NEW + b"\n")
    assert webhooks.read_secrets(file) == (OLD, NEW)
    with pytest.raises(InvalidRequest, match="No such file"):
        webhooks.read_secrets(tmp_path / "none")
    file.write_bytes(b"x" * 5_000)
    with pytest.raises(InvalidRequest, match="more than 4096 bytes"):
        webhooks.read_secrets(file)
