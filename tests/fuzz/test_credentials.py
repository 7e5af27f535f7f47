"""Fuzzes what strangers show and what rules say: no crash, and nothing is allowed by damage."""

import json

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cluster.process.key_set import KeySetError, parse_key_set
from cluster.process.oidc import ALGORITHMS, OidcSettings
from cluster.security.credentials import HEADER_CHARACTERS_MAX, hash_of, make_token, token_in
from cluster.security.issuer import TokenRefused
from cluster.security.json_web_tokens import TokenVerifier
from cluster.security.permissions import ACTIONS, KINDS, Permissions, Resource, check_rule, resource_of
from raft.peers.tls import SCHEME, names_in
from store.commands.users import Rule
from tests.fuzz.budget import fuzz
from tests.fuzz.mutation import damaged
from tests.oidc_issuer import AUDIENCE, SigningKey, TokenIssuer

TOKEN = make_token()
HEADER = f"Bearer {TOKEN.text}"
NAMES = ("a", "a*", "*", "a*b", "", "orders", "ord*", "%RETRY%g", "%DLQ%", "é", "\x00", "a" * 400)
NETWORKS = ("10.0.0.0/8", "10.0.0.1/8", "::/0", "::ffff:10.0.0.0/104", "0.0.0.0/0", "", "x", "1" * 5_000, "10.0.0.0/-1")

SIGNER = SigningKey("key", "EdDSA")
ISSUER = TokenIssuer([SIGNER], "http://127.0.0.1:1/keys")
NOW_S = 1_700_000_000
VERIFIER = TokenVerifier(OidcSettings(ISSUER.name, (AUDIENCE,), ALGORITHMS, "sub", "groups", 0, 60_000))
KEY_SET = ISSUER.key_set()
KEYS = parse_key_set(KEY_SET, ALGORITHMS)
PERSONAL = ISSUER.token(now_s=NOW_S, groups=["a"])

noise = st.binary(max_size=300).map(lambda data: data.decode("utf-8", "surrogateescape"))
headers = noise | damaged(HEADER.encode()).map(lambda data: data.decode("utf-8", "surrogateescape"))
resources = noise | st.tuples(st.sampled_from((*KINDS, "*", "TOPIC")), st.sampled_from(NAMES)).map(":".join)
rules = st.builds(
    Rule,
    effect=st.sampled_from(("allow", "deny")),
    actions=st.lists(st.sampled_from((*ACTIONS, "*", "fly", "")), max_size=4).map(tuple),
    resource=resources | st.just("*"),
    networks=st.just(()) | st.lists(st.sampled_from(NETWORKS), max_size=3).map(tuple),
)


@fuzz(1_500)
@given(headers)
@example("Bearer " + "a" * 100_000)
@example("Bearer \udcff")
def test_a_header_gives_the_token_it_shows_or_none(header: str) -> None:
    token = token_in(header)
    if token is None:
        return
    assert len(header) <= HEADER_CHARACTERS_MAX
    assert token in header
    assert (hash_of(token) == TOKEN.sha256) == (token == TOKEN.text)


@fuzz(1_500)
@given(rules, resources, st.sampled_from(ACTIONS), st.sampled_from(("10.1.2.3", "::ffff:10.1.2.3", "::1", "", "x")))
@example(Rule(effect="allow", actions=("*",), resource="topic:a*", networks=()), "group:ab", "read", "::1")
@example(Rule(effect="allow", actions=("send",), resource="topic:a", networks=()), "topic:ab", "send", "::1")
def test_a_rule_is_refused_or_decides_only_what_it_names(rule: Rule, text: str, action: str, address: str) -> None:
    try:
        check_rule(rule)
        asked: Resource = resource_of(text)
    except ValueError:
        return
    verdict = Permissions([rule], address).verdict(action, asked)  # type: ignore[arg-type]
    if verdict.allowed:
        assert rule.effect == "allow"
        assert action == "describe" or action in rule.actions or "*" in rule.actions
        named = rule.resource == "*" or resource_of(rule.resource)
        assert named is True or named.kind == asked.kind
        assert named is True or named.name == asked.name or asked.name.startswith(named.name.removesuffix("*"))


@fuzz(500)
@given(st.lists(st.tuples(st.sampled_from(("URI", "DNS", "uri")), noise | st.just("KeelMQ://c/node/1")), max_size=5))
def test_a_certificate_names_nodes_by_uris_of_the_scheme_alone(names: list[tuple[str, str]]) -> None:
    assume(names)
    found = names_in({"subjectAltName": tuple(names)})
    assert all(("URI", name) in names and name.lower().startswith(SCHEME) for name in found)
    assert found or ("URI", "KeelMQ://c/node/1") not in names


@fuzz(1_500)
@given(noise | damaged(PERSONAL.encode()).map(lambda data: data.decode("utf-8", "surrogateescape")))
@example(PERSONAL + "\n")
@example(PERSONAL.swapcase())
def test_a_damaged_token_names_nobody(token: str) -> None:
    assume(token != PERSONAL)
    with pytest.raises(TokenRefused):
        VERIFIER.verify(token, KEYS, NOW_S * 1000)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@fuzz(500)
@given(st.dictionaries(st.sampled_from(("iss", "aud", "sub", "iat", "exp", "nbf", "jti", "groups")), json_values))
def test_signed_claims_name_somebody_or_are_refused(changes: dict[str, object]) -> None:
    """The issuer is trusted with names, not with the node."""
    token = ISSUER.token(now_s=NOW_S, **{"subject": "alice", **changes})  # type: ignore[arg-type]
    try:
        person = VERIFIER.verify(token, KEYS, NOW_S * 1000)
    except TokenRefused:
        return
    assert ":" not in person.name
    assert all(":" not in group for group in person.groups)
    assert NOW_S * 1000 < person.ends_ms <= NOW_S * 1000 + 60_000


@fuzz(500)
@given(damaged(KEY_SET) | json_values.map(lambda value: json.dumps({"keys": [value]}).encode()))
def test_a_key_set_has_public_keys_or_is_refused(content: bytes) -> None:
    try:
        found = parse_key_set(content, ALGORITHMS)
    except KeySetError:
        return
    assert len(found) == 1
