"""People who show tokens of an issuer: which tokens are believed, what they allow, and where keys come from."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from cluster.health import issuer_guard
from cluster.process.addresses import ConfigError
from cluster.process.key_set import KEY_SET_BYTES_MAX, KEYS_MAX, KeySetError, parse_key_set
from cluster.process.validation import validate
from cluster.security.access_control import PERSON_RULES_MAX
from cluster.security.issuer import ASKED_KEYS_MAX
from store.features import FEATURES
from tests.certificates import Authority
from tests.oidc_issuer import AUDIENCE, Mood, SigningKey, TokenIssuer, token_issuer
from tests.unit.cluster.conftest import START_MS, Node, node_config, running_node
from tests.unit.cluster.test_certificate_guard import alarms_of
from tests.unit.cluster.test_console_calls import ADMINISTRATOR, call_as

NOW_S: Final = START_MS / 1000
REFRESH_MS: Final = 1_000
KEYS: Final = {name: SigningKey(f"key-{name}", name) for name in ("RS256", "ES256", "EdDSA")}
FOREIGN: Final = SigningKey("key-ES256", "ES256")
"""A key of somebody else under the id of a key of the issuer."""


@pytest.fixture
def issuer() -> Iterator[TokenIssuer]:
    with token_issuer(*KEYS.values()) as issuer:
        yield issuer


def closed_config(directory: Path, issuer: TokenIssuer, **changes: Any) -> Any:
    directory.mkdir(exist_ok=True)
    file = directory / "admin-token"
    file.touch(mode=0o600)
    file.write_text(ADMINISTRATOR + "\n")
    options: dict[str, Any] = {
        "auth": "enforce",
        "admin_token_file": str(file),
        "oidc_issuer": issuer.name,
        "oidc_audiences": (AUDIENCE,),
        "oidc_keys": issuer.url,
        "oidc_groups_claim": "groups",
        "oidc_refresh_ms": REFRESH_MS,
    }
    return validate(node_config(directory, **{**options, **changes}))


@pytest.fixture
async def closed(tmp_path: Path, issuer: TokenIssuer) -> AsyncIterator[Node]:
    """A node that enforces permissions and has the keys of the issuer."""
    fatal: list[str] = []
    async with running_node(closed_config(tmp_path, issuer), fatal) as node:
        await node.wait(lambda: answers(node, issuer.token(now_s=NOW_S), 200))
        # A new cluster takes users once its feature level is in the log.
        await node.wait(lambda: asyncio.sleep(0, node.core.raft.feature_levels.in_force == FEATURES.maximum))
        yield node
    assert not fatal


async def who(node: Node, token: str) -> tuple[int, Any]:
    return await call_as(node, token, "GET", "/v1/principal")


async def answers(node: Node, token: str, status: int) -> bool:
    return (await who(node, token))[0] == status


# --- who is known -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", list(KEYS))
async def test_a_person_does_what_its_own_rules_and_those_of_its_groups_allow(
    closed: Node, issuer: TokenIssuer, algorithm: str
) -> None:
    for user, rules in {
        "oidc:alice@x.org": [{"actions": ["send"], "resource": "topic:orders"}],
        "oidc-group:readers": [{"actions": ["read"], "resource": "topic:*"}],
        "oidc-group:barred": [{"effect": "deny", "actions": ["read"], "resource": "topic:secret"}],
        "readers": [{"actions": ["*"], "resource": "*"}],
    }.items():
        made = await call_as(closed, ADMINISTRATOR, "PUT", f"/v1/users/{user}", {"rules": rules})
        assert made[0] == 201, made

    async def actions(token: str, topic: str) -> list[str]:
        status, told = await call_as(closed, token, "GET", f"/v1/principal?resource=topic:{topic}")
        assert (status, told["principal"]) == (200, "oidc:alice@x.org")
        return list(told["actions"])

    key = KEYS[algorithm]
    token = issuer.token("alice@x.org", key=key, now_s=NOW_S, groups=["readers", "barred", "no such", "unknown"])
    assert await actions(token, "orders") == ["send", "read", "describe"]
    assert await actions(token, "secret") == ["describe"]
    assert await actions(issuer.token("alice@x.org", key=key, now_s=NOW_S), "secret") == []
    assert await actions(issuer.token("alice@x.org", key=key, now_s=NOW_S, groups="readers"), "secret") == [
        "read",
        "describe",
    ]
    # Changed rules hold for the next request, though the token is known.
    body = {"rules": [{"actions": ["create"], "resource": "topic:secret"}]}
    assert (await call_as(closed, ADMINISTRATOR, "PUT", "/v1/users/oidc:alice@x.org", body))[0] == 200
    assert await actions(token, "secret") == ["describe", "create"]


async def test_nobody_becomes_a_local_user_by_a_token(closed: Node, issuer: TokenIssuer) -> None:
    rules = [{"actions": ["*"], "resource": "*"}]
    assert (await call_as(closed, ADMINISTRATOR, "PUT", "/v1/users/shop", {"rules": rules}))[0] == 201
    for name in ("shop", "admin", "anonymous", "oidc-group"):
        token = issuer.token(name, now_s=NOW_S)
        assert (await who(closed, token))[1]["principal"] == f"oidc:{name}"
        status, problem = await call_as(closed, token, "PUT", "/v1/topics/t", {"queues": 1})
        assert (status, problem["code"]) == (403, "forbidden")
    for name in ("oidc:shop", "oidc-group:shop"):
        assert (await call_as(closed, ADMINISTRATOR, "PUT", f"/v1/users/{name}", {}))[0] == 201
        for path, body in ((f"/v1/users/{name}/tokens", {}), (f"/v1/users/{name}", {"certificates": ["shop"]})):
            status, problem = await call_as(closed, ADMINISTRATOR, "POST" if "tokens" in path else "PUT", path, body)
            assert (status, problem["code"]) == (400, "invalid_request")
            assert "shows tokens of the issuer" in problem["detail"]
    for name in ("oidc:", "oidc:a:b", "oidc-x:a", "x:y"):
        assert (await call_as(closed, ADMINISTRATOR, "PUT", f"/v1/users/{name}", {}))[0] == 400


async def test_a_token_ends_by_the_clock_of_the_node(closed: Node, issuer: TokenIssuer) -> None:
    """A long poll that has begun ends by its own time, as with every token; the next one is refused."""
    rules = [{"actions": ["*"], "resource": "*"}]
    assert (await call_as(closed, ADMINISTRATOR, "PUT", "/v1/users/oidc:alice", {"rules": rules}))[0] == 201
    token = issuer.token(now_s=NOW_S)
    assert (await call_as(closed, token, "PUT", "/v1/topics/t", {"queues": 1}))[0] == 201
    poll = "/v1/topics/t/queues/0/messages?offset=0&wait_ms="
    waiting = asyncio.create_task(call_as(closed, token, "GET", f"{poll}300"))
    await closed.wait(lambda: asyncio.sleep(0, len(closed.core.waiters)))
    closed.clock.now_ms = START_MS + 65_000 - 1
    assert await answers(closed, token, 200), "a minute, and the leeway"
    closed.clock.now_ms += 1
    assert (await call_as(closed, token, "GET", f"{poll}30000"))[0] == 401
    assert (await waiting)[0] == 200
    status, problem = await who(closed, token)
    assert (status, problem["code"]) == (401, "unauthenticated")
    assert "expired (exp); sign in again" in problem["detail"]


async def test_too_many_rules_together_are_refused(closed: Node, issuer: TokenIssuer) -> None:
    rules = [{"actions": ["send"], "resource": f"topic:{number}"} for number in range(256)]
    groups = [f"g{number}" for number in range(PERSON_RULES_MAX // 256 + 1)]
    for group in groups:
        body = {"rules": rules}
        assert (await call_as(closed, ADMINISTRATOR, "PUT", f"/v1/users/oidc-group:{group}", body))[0] == 201
    assert await answers(closed, issuer.token(now_s=NOW_S, groups=groups[1:]), 200)
    status, problem = await who(closed, issuer.token(now_s=NOW_S, groups=groups))
    assert (status, problem["code"]) == (401, "unauthenticated")
    assert "more than 1024 together" in problem["detail"]


# --- keys -------------------------------------------------------------------------------------------------------------


async def test_a_new_key_is_fetched_and_a_withdrawn_one_ends(closed: Node, issuer: TokenIssuer) -> None:
    new = SigningKey("new")
    old_token, token = issuer.token(now_s=NOW_S), issuer.token(key=new, now_s=NOW_S)
    issuer.keys = [new]
    status, problem = await who(closed, token)
    assert (status, problem["code"]) == (503, "signing_key_awaited")
    await closed.wait(lambda: answers(closed, token, 200))
    assert not await answers(closed, old_token, 200), "it was known, and is judged anew"
    await closed.wait(lambda: answers(closed, old_token, 401))


async def test_unknown_keys_do_not_make_a_node_hammer_the_issuer(tmp_path: Path, issuer: TokenIssuer) -> None:
    """The keys are fetched, with the default, at the start, and once more after half a minute at the earliest."""
    fatal: list[str] = []
    async with running_node(closed_config(tmp_path, issuer, oidc_refresh_ms=300_000), fatal) as node:
        await node.wait(lambda: answers(node, issuer.token(now_s=NOW_S), 200))
        statuses = []
        for number in range(ASKED_KEYS_MAX + 200):
            key = SigningKey(f"unknown-{number}", key=FOREIGN.key)
            statuses.append((await who(node, issuer.token(key=key, now_s=NOW_S)))[0])
        assert statuses == [503] * ASKED_KEYS_MAX + [401] * 200
        assert issuer.asked == 1
        await node.broker._guards.issuer.look()
        assert [await answers(node, issuer.token(key=SigningKey("unknown-1"), now_s=NOW_S), 401)] == [True]
        assert await answers(node, issuer.token(now_s=NOW_S), 200)
    assert not fatal


async def test_a_look_says_nothing_of_keys_that_are_asked_for_meanwhile(tmp_path: Path, issuer: TokenIssuer) -> None:
    """A new key was refused when the look under way had begun before the issuer had that key."""
    fatal: list[str] = []
    async with running_node(closed_config(tmp_path, issuer, oidc_refresh_ms=300_000), fatal) as node:
        await node.wait(lambda: answers(node, issuer.token(now_s=NOW_S), 200))
        judge = node.core.access.issuer
        assert judge is not None
        token = issuer.token(key=SigningKey("new"), now_s=NOW_S)
        judge.begin_look()
        assert await answers(node, token, 503)
        judge.settle()
        assert await answers(node, token, 503)
        judge.begin_look()
        judge.settle()
        assert await answers(node, token, 401)
    assert not fatal


UNUSABLE: Final = [{"kty": "oct", "kid": "shared", "k": "c2VjcmV0"}]


@pytest.mark.parametrize("members", [[], UNUSABLE], ids=["none", "none that can be used"])
async def test_an_issuer_that_withdraws_all_keys_is_believed(
    closed: Node, issuer: TokenIssuer, members: list[dict[str, str]]
) -> None:
    """Trust in them would last for another day, as when the issuer does not answer."""
    known = issuer.token(now_s=NOW_S)
    issuer.members = members
    await closed.wait(lambda: answers(closed, known, 401))
    assert "judges no token" in alarms_of(closed)["oidc_keys_not_renewed"][1]
    issuer.members = None
    await closed.wait(lambda: answers(closed, known, 200))
    assert "oidc_keys_not_renewed" not in alarms_of(closed)


async def test_keys_that_did_not_change_leave_what_was_decided_by_them(tmp_path: Path, issuer: TokenIssuer) -> None:
    fatal: list[str] = []
    async with running_node(closed_config(tmp_path, issuer, oidc_refresh_ms=300_000), fatal) as node:
        await node.wait(lambda: answers(node, issuer.token(now_s=NOW_S), 200))
        judge = node.core.access.issuer
        assert judge is not None
        before = judge.version
        await node.broker._guards.issuer.look()
        assert (issuer.asked, judge.version) == (2, before)
        issuer.keys.append(SigningKey("new"))
        await node.broker._guards.issuer.look()
        assert judge.version == before + 1
    assert not fatal


@pytest.mark.parametrize("mood", ["hangs", "drips", "huge", "redirects", "garbage", "fails"])
async def test_an_issuer_that_fails_leaves_the_former_keys(
    closed: Node, issuer: TokenIssuer, mood: Mood, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer_guard, "FETCH_TIMEOUT_S", 0.3)
    known = issuer.token(now_s=NOW_S)
    issuer.mood = mood
    issuer.keys = [SigningKey("new")]
    await closed.wait(lambda: asyncio.sleep(0, "oidc_keys_not_renewed" in alarms_of(closed)))
    words = {
        "hangs": "does not answer within 0.3 s",
        "drips": "does not answer within 0.3 s",
        "huge": f"answers with more than {KEY_SET_BYTES_MAX} bytes",
        "redirects": "answers 302, not 200; redirects are not followed",
        "garbage": "not a JSON Web Key Set",
        "fails": "answers 500, not 200",
    }
    severity, detail = alarms_of(closed)["oidc_keys_not_renewed"]
    assert (severity, words[mood] in detail) == ("warning", True), detail
    assert await answers(closed, known, 200)
    assert await answers(closed, issuer.token(now_s=NOW_S), 503), "it may be a new key"
    issuer.mood = "well"
    await closed.wait(lambda: answers(closed, issuer.token(now_s=NOW_S), 200))
    assert "oidc_keys_not_renewed" not in alarms_of(closed)
    assert not await answers(closed, known, 200), "its key is gone"


async def test_keys_that_cannot_be_renewed_for_a_day_are_no_longer_used(closed: Node, issuer: TokenIssuer) -> None:
    issuer.mood = "fails"
    closed.clock.now_ms += issuer_guard.KEYS_KEPT_S * 1000 - 10_000
    token = issuer.token(now_s=closed.clock.now_ms / 1000)
    await closed.broker._guards.issuer.look()
    assert await answers(closed, token, 200)
    closed.clock.now_ms += 20_000
    await closed.wait(lambda: answers(closed, token, 503))
    assert "judges no token" in alarms_of(closed)["oidc_keys_not_renewed"][1]
    issuer.mood = "well"
    await closed.wait(lambda: answers(closed, token, 200))


async def test_a_node_starts_without_its_issuer_and_judges_nothing_until_it_answers(
    tmp_path: Path, issuer: TokenIssuer
) -> None:
    issuer.mood = "fails"
    fatal: list[str] = []
    async with running_node(closed_config(tmp_path, issuer), fatal) as node:
        for token in (issuer.token(now_s=NOW_S), "e30.e30.e30"):
            status, problem = await who(node, token)
            assert (status, problem["code"]) == (503, "signing_key_awaited")
        issuer.mood = "well"
        await node.wait(lambda: answers(node, issuer.token(now_s=NOW_S), 200))
    assert not fatal


async def test_keys_of_a_file_are_read_again_when_they_change(tmp_path: Path, issuer: TokenIssuer) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(issuer.key_set())
    fatal: list[str] = []
    async with running_node(closed_config(tmp_path, issuer, oidc_keys=str(file)), fatal) as node:
        guard = node.broker._guards.issuer
        known = issuer.token(now_s=NOW_S)
        assert await answers(node, known, 200), "from the first request on"
        issuer.keys = [SigningKey("new")]
        assert await answers(node, issuer.token(now_s=NOW_S), 503)
        await guard.look()
        assert await answers(node, issuer.token(now_s=NOW_S), 401), "the file has no such key"
        file.write_text('{"keys": []}')
        await guard.look()
        assert await answers(node, known, 503), "its key may have come back"
        await guard.look()
        assert await answers(node, known, 401)
        file.write_text("{}")
        await guard.look()
        assert await answers(node, known, 401), "what was withdrawn stays so"
        issuer.keys, new = list(KEYS.values()), issuer.keys
        file.write_bytes(issuer.key_set())
        await guard.look()
        assert await answers(node, known, 200)
        issuer.keys = new
        file.write_text("{}")
        await guard.look()
        assert await answers(node, issuer.token(now_s=NOW_S), 503), "a file that cannot be read says nothing of keys"
        assert "not a JSON Web Key Set" in alarms_of(node)["oidc_keys_not_renewed"][1]
        assert await answers(node, known, 200)
        file.write_bytes(issuer.key_set())
        await guard.look()
        assert await answers(node, issuer.token(now_s=NOW_S), 200)
        assert not await answers(node, known, 200), "its key is gone"
        assert "oidc_keys_not_renewed" not in alarms_of(node)
    assert not fatal


async def test_the_issuer_is_verified_by_its_certificate(tmp_path: Path) -> None:
    """The certificate is accepted by http_ca, beside the authorities of the system, of which none has signed it."""
    authority = Authority()
    files = authority.issue_server(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate_file, files.key_file)
    fatal: list[str] = []
    with token_issuer(tls=server) as issuer:
        config = closed_config(tmp_path / "its", issuer, http_ca=files.ca_file, oidc_keys=f"HTTPS{issuer.url[5:]}")
        async with running_node(config, fatal) as node:
            await node.wait(lambda: answers(node, issuer.token(now_s=NOW_S), 200))
        async with running_node(closed_config(tmp_path / "other", issuer), fatal) as node:
            await node.wait(lambda: asyncio.sleep(0, "oidc_keys_not_renewed" in alarms_of(node)))
            assert "certificate verify failed" in alarms_of(node)["oidc_keys_not_renewed"][1]
            assert await answers(node, issuer.token(now_s=NOW_S), 503)
    assert not fatal


def test_keys_that_are_no_use_are_left_out() -> None:
    good = KEYS["RS256"].public()
    small = SigningKey("small", "RS256", rsa.generate_private_key(65537, 1_024)).public()
    for bad in (
        {**good, "kid": None},
        {**good, "kid": ""},
        {**good, "kid": "k" * 257},
        {**good, "use": "enc"},
        {**good, "key_ops": ["encrypt"]},
        {**good, "alg": "RS512"},
        {**good, "alg": "HS256"},
        {**good, "n": "A" * 1_001},
        {**good, "n": 7},
        {**good, "e": "A" * 9},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "key-RS256"},
        {"kty": ["RSA"], "kid": "key-RS256"},
        {**KEYS["ES256"].public(), "crv": "P-521"},
        {**KEYS["ES256"].public(), "x": "AAAA"},
        small,
    ):
        with pytest.raises(KeySetError, match="none of its 1 keys"):
            parse_key_set(json.dumps({"keys": [bad]}).encode(), KEYS)
        assert len(parse_key_set(json.dumps({"keys": [bad, good]}).encode(), KEYS)) == 1
    private = {**good, "d": "AQAB", "p": "AQAB"}
    found = parse_key_set(json.dumps({"keys": [private]}).encode(), KEYS).find("key-RS256", "RS256")
    assert found is not None
    assert isinstance(found.key, rsa.RSAPublicKey), "a set never gives a node a private key"
    with pytest.raises(KeySetError, match="none of its 1 keys"):
        parse_key_set(json.dumps({"keys": [good]}).encode(), ["ES256"])
    for content, words in (
        (b"", "not a JSON Web Key Set"),
        (b"[" * 100_000, "not a JSON Web Key Set"),
        (b'{"keys":[' + b'{"a":' * 50_000, "not a JSON Web Key Set"),
        (b" " * (KEY_SET_BYTES_MAX + 1), "larger than"),
        (json.dumps({"keys": [good] * (KEYS_MAX + 1)}).encode(), "more than 100 keys"),
        (b'{"keys":[]}', "none of its 0 keys"),
    ):
        with pytest.raises(KeySetError, match=words):
            parse_key_set(content, KEYS)


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"oidc_audiences": ()}, "oidc_audiences: give"),
        ({"oidc_keys": None}, "oidc_keys: give"),
        ({"oidc_issuer": None}, "oidc_issuer: give"),
        ({"auth": "off"}, "auth off"),
        ({"oidc_algorithms": ("none",)}, "oidc_algorithms: .'none'.: give some of RS256, ES256, EdDSA"),
        ({"oidc_algorithms": ("ES256", "HS256")}, "oidc_algorithms: .'HS256'."),
        ({"oidc_algorithms": ()}, "oidc_algorithms"),
        ({"oidc_principal_claim": ""}, "name of a claim"),
        ({"oidc_keys": "http://issuer.example/keys"}, "could exchange the keys"),
        ({"oidc_keys": "ftp://issuer.example/keys"}, "is not a URL"),
        ({"oidc_keys": "https://me:secret@issuer.example/keys"}, "is not a URL"),
        ({"oidc_keys": "https://"}, "is not a URL"),
        ({"oidc_keys": "/nowhere/keys.json"}, "oidc_keys /nowhere/keys.json: cannot be read: No such file"),
    ],
)
def test_options_that_would_open_a_door_are_refused(
    tmp_path: Path, issuer: TokenIssuer, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        closed_config(tmp_path, issuer, **changes)


# --- claims that say less than they seem to ---------------------------------------------------------------------------


@pytest.mark.parametrize("verified", [None, False, "true", 1])
async def test_an_address_that_the_issuer_has_not_verified_names_nobody(
    tmp_path: Path, issuer: TokenIssuer, verified: Any
) -> None:
    fatal: list[str] = []
    async with running_node(closed_config(tmp_path, issuer, oidc_principal_claim="email"), fatal) as node:
        good = issuer.token(now_s=NOW_S, email="alice@x.org", email_verified=True)
        await node.wait(lambda: answers(node, good, 200))
        status, problem = await who(node, issuer.token(now_s=NOW_S, email="alice@x.org", email_verified=verified))
        assert status == 401
        assert "email_verified" in problem["detail"]
    assert not fatal


@pytest.mark.parametrize(
    "claims",
    [{"_claim_names": {"groups": "src1"}}, {"hasgroups": True}, {"_claim_names": "groups"}, {"groups": 7}],
    ids=["elsewhere", "has groups", "no object", "no list"],
)
async def test_a_person_whose_groups_are_not_told_is_refused(
    closed: Node, issuer: TokenIssuer, claims: dict[str, Any]
) -> None:
    """Rules that deny something to a group would not hold."""
    status, problem = await who(closed, issuer.token(now_s=NOW_S, **claims))
    assert status == 401
    assert "groups" in problem["detail"]
    assert await answers(closed, issuer.token(now_s=NOW_S, _claim_names={"address": "src1"}), 200)
