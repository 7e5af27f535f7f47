"""Tokens of people that are refused, each for its own reason, with the same answer, and with nothing changed."""

import base64
import hmac
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from cluster.process.key_set import parse_key_set
from cluster.process.oidc import ALGORITHMS, OidcSettings
from cluster.security import access_control
from cluster.security.issuer import Person
from cluster.security.json_web_tokens import GROUPS_MAX, TokenVerifier
from tests.oidc_issuer import AUDIENCE, TokenIssuer
from tests.unit.cluster.conftest import Node, running_node
from tests.unit.cluster.test_console_calls import ADMINISTRATOR, call_as
from tests.unit.cluster.test_oidc import FOREIGN, KEYS, NOW_S, answers, closed_config
from tests.unit.cluster.test_oidc import closed as closed
from tests.unit.cluster.test_oidc import issuer as issuer


def signed(header: dict[str, Any], claims: Any, sign: Callable[[bytes], bytes]) -> str:
    """Return a token that is put together by hand."""

    def part(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    begun = part(json.dumps(header).encode()) + b"." + part(json.dumps(claims).encode())
    return (begun + b"." + part(sign(begun))).decode()


CLAIMS: Final = {"aud": AUDIENCE, "sub": "alice", "iat": int(NOW_S), "exp": int(NOW_S) + 60}


def by_hand(issuer: TokenIssuer, header: dict[str, Any], claims: Any = None, key: bytes = b"") -> str:
    """Return a token with an HMAC of `key`, or without a signature worth the name."""
    content = {**CLAIMS, "iss": issuer.name} if claims is None else claims
    return signed(header, content, lambda data: hmac.digest(key, data, "sha256") if key else b"none")


BAD: Final[dict[str, tuple[Callable[[TokenIssuer], str], str]]] = {
    "expired": (lambda it: it.token(now_s=NOW_S - 66), "expired (exp)"),
    "other audience": (lambda it: it.token(now_s=NOW_S, aud="others"), "another audience"),
    "audience in other letters": (lambda it: it.token(now_s=NOW_S, aud=AUDIENCE.swapcase()), "another audience"),
    "several other audiences": (lambda it: it.token(now_s=NOW_S, aud=["others", "more"]), "another audience"),
    "audiences that are no text": (lambda it: it.token(now_s=NOW_S, aud=[AUDIENCE, 7]), "another audience"),
    "issued to another client": (
        lambda it: it.token(now_s=NOW_S, aud=[AUDIENCE, "others"], azp="others"),
        "a client that is none of ours (azp)",
    ),
    "issued to a client in other letters": (
        lambda it: it.token(now_s=NOW_S, aud=["others", AUDIENCE], azp=AUDIENCE.swapcase()),
        "a client that is none of ours (azp)",
    ),
    "issued to a client that is no text": (
        lambda it: it.token(now_s=NOW_S, aud=[AUDIENCE, "others"], azp=[AUDIENCE]),
        "a client that is none of ours (azp)",
    ),
    "no audience": (lambda it: it.token(now_s=NOW_S, aud=None), "lacks the claim aud"),
    "other issuer": (lambda it: it.token(now_s=NOW_S, iss=it.name + "/"), "another issuer"),
    "issuer in other letters": (lambda it: it.token(now_s=NOW_S, iss=it.name.swapcase()), "another issuer"),
    "no issuer": (lambda it: it.token(now_s=NOW_S, iss=None), "lacks the claim iss"),
    "no expiry": (lambda it: it.token(now_s=NOW_S, exp=None), "lacks the claim exp"),
    "no issue time": (lambda it: it.token(now_s=NOW_S, iat=None), "lacks the claim iat"),
    "no subject": (lambda it: it.token(now_s=NOW_S, sub=None), "lacks the claim sub"),
    "too long a life": (lambda it: it.token(now_s=NOW_S, exp=int(NOW_S) + 86_401), "oidc_max_lifetime_ms"),
    "ends before it begins": (lambda it: it.token(now_s=NOW_S, iat=int(NOW_S) + 2, exp=int(NOW_S) + 1), "lifetime"),
    "not yet": (lambda it: it.token(now_s=NOW_S, nbf=int(NOW_S) + 6), "not valid yet (nbf)"),
    "of the future": (lambda it: it.token(now_s=NOW_S + 6), "issued in the future (iat)"),
    "times as text": (lambda it: it.token(now_s=NOW_S, exp=str(int(NOW_S) + 60)), "exp is not a time"),
    "endless": (lambda it: it.token(now_s=NOW_S, exp=float("inf")), "exp is not a time"),
    "no number": (lambda it: it.token(now_s=NOW_S, exp=float("nan")), "exp is not a time"),
    "true": (lambda it: it.token(now_s=NOW_S, iat=True), "iat is not a time"),
    "subject is a number": (lambda it: signed_claims(it, sub=7), "not well formed"),
    "subject with a colon": (lambda it: it.token("oidc:alice", now_s=NOW_S), "claim sub is not"),
    "subject with a line": (lambda it: it.token("alice\nadmin", now_s=NOW_S), "claim sub is not"),
    "subject too long": (lambda it: it.token("a" * 129, now_s=NOW_S), "claim sub is not"),
    "groups of no list": (lambda it: it.token(now_s=NOW_S, groups={"a": 1}), "not a list"),
    "groups of numbers": (lambda it: it.token(now_s=NOW_S, groups=[1]), "not a list"),
    "too many groups": (lambda it: it.token(now_s=NOW_S, groups=[""] * (GROUPS_MAX + 1)), "not a list"),
    "algorithm none": (lambda it: by_hand(it, {"alg": "none", "kid": "key-ES256"}), "algorithm is none of"),
    "algorithm None": (lambda it: by_hand(it, {"alg": "None", "kid": "key-ES256"}), "algorithm is none of"),
    "HS256 with the public key": (
        lambda it: by_hand(it, {"alg": "HS256", "kid": "key-RS256"}, key=KEYS["RS256"].pem()),
        "algorithm is none of",
    ),
    "algorithm of another key": (lambda it: by_hand(it, {"alg": "RS256", "kid": "key-ES256"}), "the one of its key"),
    "PS256": (
        lambda it: jwt.encode(dict(CLAIMS), rsa_key(), algorithm="PS256", headers={"kid": "key-RS256"}),
        "algorithm is none of",
    ),
    "no kid": (lambda it: by_hand(it, {"alg": "ES256"}), "does not name its key"),
    "empty kid": (lambda it: by_hand(it, {"alg": "ES256", "kid": ""}), "does not name its key"),
    "kid with a line": (lambda it: by_hand(it, {"alg": "ES256", "kid": "a\nb"}), "does not name its key"),
    "kid is a number": (lambda it: by_hand(it, {"alg": "ES256", "kid": 7}), "not well formed"),
    "critical": (lambda it: by_hand(it, {"alg": "ES256", "kid": "key-ES256", "crit": ["b64"]}), "extensions (crit)"),
    "sign-out": (lambda it: by_hand(it, {"alg": "ES256", "kid": "key-ES256", "typ": "logout+jwt"}), "another type"),
    "not encoded": (lambda it: by_hand(it, {"alg": "ES256", "kid": "key-ES256", "b64": False}), "not well formed"),
    "its own key": (
        lambda it: jwt.encode(
            {**CLAIMS, "iss": it.name},
            FOREIGN.key,
            algorithm="ES256",
            headers={"kid": FOREIGN.kid, "jwk": FOREIGN.public(), "jku": "http://127.0.0.1:1/"},
        ),
        "signature is not that of its key",
    ),
    "other key": (lambda it: it.token(key=FOREIGN, now_s=NOW_S), "signature is not that of its key"),
    "changed": (lambda it: changed(it), "signature is not that of its key"),
    "claims are a list": (lambda it: signed_claims(it, []), "not well formed"),
    "nested": (lambda it: f"{'W1tb' * 250}.e30.e30", "not well formed"),
    "long header": (lambda it: long_header(it), "not well formed"),
    "two parts": (lambda it: it.token(now_s=NOW_S).rpartition(".")[0], "belongs to another cluster"),
    "four parts": (lambda it: it.token(now_s=NOW_S) + ".x", "belongs to another cluster"),
    "empty parts": (lambda it: "..", "not well formed"),
    "padded": (lambda it: it.token(now_s=NOW_S) + "==", "not well formed"),
    "oversize": (lambda it: f"{'a' * 8_000}.b.c", "must be `Bearer` and a token"),
}


def long_header(issuer: TokenIssuer) -> str:
    """Return a good token, but for the length of its header."""
    key, claims = KEYS["EdDSA"], {**CLAIMS, "iss": issuer.name}
    return jwt.encode(claims, key.key, algorithm="EdDSA", headers={"kid": key.kid, "more": "x" * 800})


def rsa_key() -> rsa.RSAPrivateKey:
    key = KEYS["RS256"].key
    assert isinstance(key, rsa.RSAPrivateKey)
    return key


def signed_claims(issuer: TokenIssuer, claims: Any = None, **changes: Any) -> str:
    """Return a token with any content that the issuer has signed."""
    content = {**CLAIMS, "iss": issuer.name, **changes} if claims is None else claims
    key = KEYS["EdDSA"]
    return signed({"alg": "EdDSA", "kid": key.kid}, content, key.key.sign)  # type: ignore[arg-type]


def changed(issuer: TokenIssuer) -> str:
    """Return a token whose claims somebody has changed."""
    mine, others = issuer.token("alice", now_s=NOW_S).split("."), issuer.token("root", now_s=NOW_S).split(".")
    return ".".join((mine[0], others[1], mine[2]))


async def test_bad_tokens_are_refused_alike_and_change_nothing(
    closed: Node, issuer: TokenIssuer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    rules = [{"actions": ["*"], "resource": "*"}]
    for user in ("oidc:alice", "oidc:root"):
        made = await call_as(closed, ADMINISTRATOR, "PUT", f"/v1/users/{user}", {"rules": rules})
        assert made[0] == 201, made
    index = closed.core.raft.commit_index
    asked = issuer.asked
    for name, (make, reason) in BAD.items():
        token = make(issuer)
        status, problem = await call_as(closed, token, "PUT", "/v1/topics/t", {"queues": 1})
        assert (status, problem["code"]) == (401, "unauthenticated"), (name, problem)
        assert reason in problem["detail"], (name, problem)
        for part in token.split("."):
            assert len(part) < 8 or part not in caplog.text + json.dumps(problem), name
    text = (await call_as_text(closed, "/metrics")).split('keelmq_auth_refused_total{reason="unauthenticated"} ')[1]
    assert float(text.splitlines()[0]) >= len(BAD)
    assert closed.core.raft.commit_index == index
    assert issuer.asked <= asked + 100, "by the time that has passed, not by the tokens"
    assert "PUT /v1/topics/t by anonymous at 127.0.0.1 is refused" in caplog.text
    assert (await call_as(closed, issuer.token(now_s=NOW_S), "PUT", "/v1/topics/t", {"queues": 1}))[0] == 201


async def call_as_text(node: Node, path: str) -> str:
    headers = {"Authorization": f"Bearer {ADMINISTRATOR}"}
    async with node.session.get(path, headers=headers) as response:
        return await response.text()


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": [AUDIENCE, "others"]},
        {"aud": ["others", AUDIENCE], "azp": AUDIENCE},
        {"aud": [AUDIENCE, "others"], "azp": "keelmq-cli"},
        {"aud": [AUDIENCE, AUDIENCE], "azp": "others"},
        {"aud": AUDIENCE, "azp": "others"},
    ],
)
def test_a_token_for_several_audiences_is_good_if_it_was_issued_to_a_client_of_ours(
    issuer: TokenIssuer, claims: dict[str, Any]
) -> None:
    """One for this audience alone is good whoever it was issued to: nobody else takes it."""
    settings = OidcSettings(issuer.name, (AUDIENCE, "keelmq-cli"), ALGORITHMS, "sub", None, 0, 86_400_000)
    keys = parse_key_set(json.dumps({"keys": [key.public() for key in issuer.keys]}).encode(), ALGORITHMS)
    token = issuer.token(now_s=NOW_S, **claims)
    assert TokenVerifier(settings).verify(token, keys, int(NOW_S * 1000)).name == "alice"


async def test_a_refused_token_is_judged_once_for_each_request(tmp_path: Path, issuer: TokenIssuer) -> None:
    """Lists ask for each row whether it may be seen, and are answered to everybody in mode permissive."""
    fatal: list[str] = []
    async with running_node(closed_config(tmp_path, issuer, auth="permissive"), fatal) as node:
        await node.wait(lambda: answers(node, issuer.token(now_s=NOW_S), 200))
        for number in range(20):
            assert (await call_as(node, ADMINISTRATOR, "PUT", f"/v1/topics/t{number}", {"queues": 1}))[0] == 201
        known = node.core.access.issuer
        assert known is not None
        judged: list[str] = []
        identify = known.identify

        def counted(token: str, now_ms: int) -> Person:
            judged.append(token)
            return identify(token, now_ms)

        known.identify = counted  # type: ignore[method-assign]
        for token, times in ((issuer.token(now_s=NOW_S, aud="others"), 3), (issuer.token("bob", now_s=NOW_S), 1)):
            judged.clear()
            for _ in range(3):
                status, found = await call_as(node, token, "GET", "/v1/topics")
                assert (status, len(found["topics"])) == (200, 20)
            assert len(judged) == times
    assert not fatal


async def test_long_credentials_are_remembered_within_a_bound(
    closed: Node, issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_control, "KNOWN_CHARACTERS_MAX", 20_000)
    for number in range(12):
        token = issuer.token(f"user-{number}", now_s=NOW_S, more="x" * 4_000)
        assert await answers(closed, token, 200)
        assert await answers(closed, token, 200)
        kept = sum(len(each.authorization or "") for each in closed.core.access._known)
        assert 5_000 < kept <= 20_000
