"""Join tokens on a real node: who is given the peer secret, who is refused, and what is told of it."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.background.join_tokens import USERS_AT_A_TIME, remove_expired_join_tokens
from cluster.process.config import NodeConfig
from cluster.process.exit_codes import StartupError
from cluster.process.join import joined
from cluster.security.credentials import make_token
from store.commands.users import DeleteUser, PutUser, Token
from store.features import FEATURES
from tests.unit.cluster.conftest import START_MS, Answer, Node, node_config, running_node
from tests.unit.cluster.test_request_lines import Lines

ADMINISTRATOR = "administrator-of-the-tests-0123456789abcdef"
SECRET = "secret-of-the-peers-é-0123456789abcdef"
JOIN = "/v1/cluster/join"
AUDIT, REFUSED = "keelmq.audit", "keelmq.audit.refused"


def private(file: Path, content: bytes) -> str:
    file.touch(mode=0o600)
    file.write_bytes(content)
    return str(file)


@contextlib.asynccontextmanager
async def closed_node(path: Path, secret: bytes | None = SECRET.encode(), **changes: Any) -> AsyncIterator[Node]:
    """Run a node that enforces permissions; its own calls are those of the administrator."""
    fatal: list[str] = []
    config = node_config(
        path,
        auth="enforce",
        admin_token_file=private(path / "admin", ADMINISTRATOR.encode()),
        peer_secret_file=None if secret is None else private(path / "secret", secret),
        **changes,
    )
    async with running_node(config, fatal) as node:
        node.session.headers["Authorization"] = f"Bearer {ADMINISTRATOR}"
        # A new cluster takes users once its feature level is in the log.
        await node.wait(lambda: asyncio.sleep(0, node.core.raft.feature_levels.in_force == FEATURES.maximum))
        yield node
    assert not fatal


@pytest.fixture
async def closed(tmp_path: Path) -> AsyncIterator[Node]:
    async with closed_node(tmp_path) as node:
        yield node


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Lines]:
    caplog.set_level(logging.INFO, AUDIT)
    handler = Lines()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


async def made(node: Node, node_id: int = 4) -> str:
    answer = await node.call("POST", "/v1/cluster/join-tokens", {"node_id": node_id})
    assert answer.status == 201, answer
    return str(answer.body["token"])


def new_token(ends_ms: int) -> Token:
    made = make_token()
    return Token(made.token_id, made.sha256, START_MS, ends_ms)


def revision_of(node: Node, name: str) -> int:
    user = node.core.state.users.get(name)
    assert user is not None
    return user.revision


async def show(node: Node, token: str, headers: dict[str, str] | None = None) -> Answer:
    """Show the token for node 4."""
    shown = {"Authorization": f"Bearer {token}", **(headers or {})}
    async with node.session.post(JOIN, json={"node_id": 4}, headers=shown) as response:
        return Answer(response.status, await response.json(content_type=None), response.headers)


def joining(path: Path, node: Node, token: str, file: Path) -> NodeConfig:
    return node_config(
        path / "joining",
        node_id=4,
        join=f"http://{node.core.config.http_listen}",
        join_token_file=private(path / "token", token.encode()),
        peer_secret_file=str(file),
    )


async def test_of_many_that_show_a_token_at_once_one_is_given_the_secret(closed: Node) -> None:
    token = await made(closed)
    answers = await asyncio.gather(*(show(closed, token) for _ in range(20)))
    assert sorted(answer.status for answer in answers) == [200] + 19 * [401]
    assert [answer.body["peer_secret"] for answer in answers if answer.status == 200] == [SECRET]
    assert closed.core.state.users.get("join:4") is None


async def test_a_token_that_was_made_meanwhile_is_not_used_up(closed: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The administrator makes another token while the entry that uses up the first one is on its way."""
    token, newer = await made(closed), make_token()
    core, propose = closed.core, closed.core.propose

    async def propose_behind_another(command: Any, **more: Any) -> Any:
        if isinstance(command, DeleteUser):
            former = core.state.users.get("join:4")
            assert former is not None
            held = (Token(newer.token_id, newer.sha256, START_MS, START_MS + 3_600_000),)
            await propose(PutUser("join:4", (), held, (), former.revision))
        return await propose(command, **more)

    with monkeypatch.context() as patched:
        patched.setattr(core, "propose", propose_behind_another)
        answer = await show(closed, token)
    assert (answer.status, answer.body["code"]) == (401, "unauthenticated")
    assert (await show(closed, newer.text)).status == 200


async def test_a_secret_that_no_answer_can_hold_costs_no_token(tmp_path: Path) -> None:
    async with closed_node(tmp_path, b"\xff" * 40) as node:
        refused = await node.call("POST", "/v1/cluster/join-tokens", {"node_id": 4})
        assert (refused.status, refused.body["code"]) == (409, "peer_secret_not_text")
        assert node.core.state.users.get("join:4") is None
        known = make_token()
        await node.core.propose(
            PutUser("join:4", (), (Token(known.token_id, known.sha256, START_MS, START_MS + 60_000),), (), 0)
        )
        answer = await show(node, known.text)
        assert (answer.status, answer.body["code"]) == (409, "peer_secret_not_text")
        assert node.core.state.users.get("join:4") is not None, "the token is still good"


async def test_no_token_is_used_up_while_nobody_knows_whether_it_is_over(closed: Node) -> None:
    token = await made(closed)
    for leapt_ms, status in ((-86_400_000, 503), (0, 200)):
        closed.clock.leapt_ms = leapt_ms
        closed.clock.now_ms += 1_000  # the clocks are looked at again
        answer = await show(closed, token)
        assert answer.status == status, answer
        assert answer.body.get("code") == ("clock_in_doubt" if status == 503 else None)


async def test_a_token_that_is_over_stays_so_when_the_clock_is_set_back_and_after_a_restart(tmp_path: Path) -> None:
    async with closed_node(tmp_path) as node:
        answer = await node.call("POST", "/v1/cluster/join-tokens", {"node_id": 4, "expires_in_ms": 1_000})
        token = answer.body["token"]
        node.clock.now_ms += 1_000
        assert (await show(node, token)).status == 401
        await made(node, 5)  # an entry: the replicated clock has reached this time
    async with closed_node(tmp_path) as node:  # its clock is the one of the beginning
        assert (await show(node, token)).status == 401


async def test_a_token_that_nobody_used_is_deleted_once_it_is_over(closed: Node) -> None:
    """Nothing is deleted of those that are still good, of local users, and of one that was made anew meanwhile."""
    core = closed.core
    ends_ms = closed.clock.now_ms + 60_000
    for node_id in range(1, USERS_AT_A_TIME + 5):
        await core.propose(PutUser(f"join:{node_id}", (), (new_token(ends_ms),), (), 0))
    await core.propose(PutUser("join:4", (), (new_token(ends_ms + 1),), (), revision_of(closed, "join:4")))
    await core.propose(PutUser("shop", (), (new_token(ends_ms),), (), 0))
    closed.clock.now_ms = ends_ms - 1
    await remove_expired_join_tokens(core)
    assert len(core.state.users) == USERS_AT_A_TIME + 5, "none is over yet"
    closed.clock.now_ms = ends_ms
    await remove_expired_join_tokens(core)
    assert [user.user for user in core.state.users.after(None, 1_000)] == ["join:4", "shop"]


@pytest.mark.parametrize("leapt_ms", [86_400_000, -86_400_000])
async def test_no_token_is_deleted_while_nobody_knows_whether_it_is_over(closed: Node, leapt_ms: int) -> None:
    """A deletion cannot be undone, and the clock that says that the time has come may be wrong."""
    core, clock = closed.core, closed.clock
    await core.propose(PutUser("join:4", (), (new_token(clock.now_ms + 60_000),), (), 0))
    if leapt_ms < 0:  # it is over by an entry whose time was sure
        clock.now_ms += 60_000
        await made(closed, 5)
    clock.leapt_ms = leapt_ms
    clock.now_ms += 1_000  # the clocks are looked at again
    await closed.wait(lambda: asyncio.sleep(0, not core.clock_is_sure()))
    await remove_expired_join_tokens(core)
    assert core.state.users.get("join:4") is not None
    clock.leapt_ms = 0
    clock.now_ms += 60_000
    await closed.wait(lambda: asyncio.sleep(0, core.clock_is_sure()))
    await remove_expired_join_tokens(core)
    assert core.state.users.get("join:4") is None


async def test_a_round_of_the_leader_deletes_tokens_that_are_over(tmp_path: Path) -> None:
    async with closed_node(tmp_path, retention_check_ms=10) as node:
        await made(node)
        node.clock.now_ms += 3_600_000

        async def is_deleted() -> bool:
            return node.core.state.users.get("join:4") is None

        await node.wait(is_deleted)


async def test_a_token_that_is_made_anew_while_it_is_deleted_stays(
    closed: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await closed.core.propose(PutUser("join:4", (), (new_token(closed.clock.now_ms),), (), 0))
    core, propose, newer = closed.core, closed.core.propose, new_token(closed.clock.now_ms + 60_000)

    async def propose_behind_another(command: Any) -> Any:
        await propose(PutUser("join:4", (), (newer,), (), revision_of(closed, "join:4")))
        return await propose(command)

    with monkeypatch.context() as patched:
        patched.setattr(core, "propose", propose_behind_another)
        await remove_expired_join_tokens(core)
    user = core.state.users.get("join:4")
    assert user is not None
    assert user.tokens == (newer,)


@pytest.mark.parametrize(
    "header",
    ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP", "Via"],
)
async def test_the_secret_is_not_given_to_a_proxy(closed: Node, header: str) -> None:
    token = await made(closed)
    answer = await show(closed, token, {header: ""})
    assert (answer.status, answer.body["code"]) == (403, "forbidden")
    assert "proxy" in answer.body["detail"]
    assert (await show(closed, token)).status == 200, "the token was not used up"


async def test_each_refusal_is_counted_and_audited_without_the_token(closed: Node, lines: Lines) -> None:
    token, other = await made(closed), await made(closed, 5)
    wrong = "keelmq_" + "x" * 43
    cases: tuple[tuple[str, str, dict[str, str], str, str | None], ...] = (
        ("wrong", wrong, {}, "anonymous", "unauthenticated"),
        ("of-another-node", other, {}, "join:5", "forbidden"),
        ("no-join-token", ADMINISTRATOR, {}, "admin", "forbidden"),
        ("by-proxy", token, {"Via": "1.1 proxy"}, "join:4", "forbidden"),
        ("used", token, {}, "join:4", None),
        ("used-up", token, {}, "anonymous", "unauthenticated"),
    )
    for request_id, shown, headers, principal, code in cases:
        before, told = await refusals(closed), len(lines.of(REFUSED))
        answer = await show(closed, shown, {**headers, "X-Request-Id": request_id})
        after, found = await refusals(closed), lines.of(REFUSED)[told:]
        if code is None:
            assert (answer.status, after, found) == (200, before, [])
            continue
        assert answer.body["code"] == code
        assert after == {**before, code: before[code] + 1}, request_id
        assert [(line["message"], line["request_id"]) for line in found] == [
            (f"POST {JOIN} by {principal} at 127.0.0.1: {code}", request_id)
        ]
    assert [line["request_id"] for line in lines.of(AUDIT) if JOIN in str(line["message"]).split()] == ["used"]
    for secret in (token, other, wrong, ADMINISTRATOR, SECRET):
        assert secret not in str(lines.lines)


async def refusals(node: Node) -> dict[str, int]:
    text = (await node.call("GET", "/metrics")).body.decode()
    prefix = "keelmq_auth_refused_total{reason="
    found = [line.removeprefix(prefix) for line in text.splitlines() if line.startswith(prefix)]
    return {line.split('"')[1]: int(float(line.split()[-1])) for line in found}


async def test_the_audit_log_names_the_node_for_which_a_token_was_made(closed: Node, lines: Lines) -> None:
    await made(closed, 7)
    assert any("join token of node 7" in str(line["message"]) for line in lines.of(AUDIT))


async def test_a_node_keeps_the_secret_that_it_is_given(closed: Node, tmp_path: Path) -> None:
    file = tmp_path / "given"
    config = joining(tmp_path, closed, await made(closed), file)
    assert (await asyncio.to_thread(joined, config)).cluster_id == closed.core.config.cluster_id
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (SECRET.encode() + b"\n", 0o600)


@pytest.mark.parametrize("place", ["missing/given", "is-there", "leads-nowhere", "no\0name"])
async def test_a_node_that_cannot_keep_the_secret_does_not_show_its_token(
    closed: Node, tmp_path: Path, place: str
) -> None:
    (tmp_path / "is-there").mkdir()
    (tmp_path / "leads-nowhere").symlink_to(tmp_path / "elsewhere")
    token = await made(closed)
    with pytest.raises(StartupError, match=r"peer_secret_file|peer secret would be written"):
        await asyncio.to_thread(joined, joining(tmp_path, closed, token, tmp_path / place))
    assert not (tmp_path / "elsewhere").exists()
    assert (await show(closed, token)).status == 200, "the token is still good"


async def test_a_node_that_is_refused_leaves_no_file(closed: Node, tmp_path: Path) -> None:
    file = tmp_path / "given"
    config = joining(tmp_path, closed, await made(closed, 5), file)
    with pytest.raises(StartupError, match="joining takes a join token of node 4"):
        await asyncio.to_thread(joined, config)
    assert not file.exists()


async def test_a_node_of_a_cluster_without_a_secret_is_left_without_a_file(tmp_path: Path) -> None:
    async with closed_node(tmp_path, None) as node:
        file = tmp_path / "given"
        await asyncio.to_thread(joined, joining(tmp_path, node, await made(node), file))
        assert not file.exists()
