"""Two runs of `keelmq-deploy` on one cluster from different machines: the second one is refused, and told by whom."""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.rollout import __main__, holding, host_root
from deploy.rollout.holding import held
from deploy.rollout.host_root import MARK
from deploy.rollout.inventory import read_inventory
from deploy.rollout.transport import RUN, Host, HostError, agent_source
from deploy.rollout.verbs import Verbs
from tests.e2e.cluster_process import wait_for
from tests.unit.deploy.stand_ins import Cluster, Run

OWNER = "node {} of the cluster shop\n"

SSH_OF_TWO = """#!/bin/sh
for last; do :; done
if mkdir {slots}/a 2> /dev/null; then slot={slots}/a
elif mkdir {slots}/b 2> /dev/null; then slot={slots}/b
else exit 255
fi
exec 3<&0
sh -c "$last" <&3 | (read -r line; rmdir $slot; echo "$line"; exec cat)
"""
"""ssh to this machine, which two run at a time until their commands have said something."""

SSH_AWAY = """#!/bin/sh
for last; do :; done
exec 3<&0
sh -c "$last" <&3
exec cat <&3 > /dev/null
"""
"""ssh to this machine that does not notice the end of what it began, as without a network."""
SSH_REFUSED = """#!/bin/sh
for last; do :; done
echo >> {calls}
case " {refused} " in *" $(wc -l < {calls} | tr -d ' ') "*) exit 255;; esac
exec sh -c "$last"
"""
"""ssh to this machine by which some connections are refused, by their numbers."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster()
    for number in (1, 2):  # node 3 has no root yet
        (tmp_path / "hosts" / f"node{number}").mkdir(parents=True)
        (tmp_path / "hosts" / f"node{number}" / MARK).write_text(OWNER.format(number))
    made.inventory(tmp_path)
    yield made
    made.end()


@pytest.fixture
def hosts(cluster: Cluster, tmp_path: Path) -> list[Host]:
    inventory = read_inventory(tmp_path / "cluster.toml")
    return [Host(inventory, node) for node in inventory.nodes]


@pytest.fixture
def never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent gives a killed run no time."""
    source = agent_source().replace(f"BUSY_S_MAX = {host_root.BUSY_S_MAX}", "BUSY_S_MAX = 0.0")
    assert source != agent_source()
    monkeypatch.setattr("deploy.rollout.transport.agent_source", lambda: source)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the tool on another machine: its inventory is a copy in another directory."""
    (tmp_path / "elsewhere").mkdir()

    def run_verb(*arguments: str) -> tuple[int, str]:
        copy = tmp_path / "elsewhere" / "cluster.toml"
        copy.write_text((tmp_path / "cluster.toml").read_text())
        monkeypatch.setattr(sys, "argv", ["keelmq-deploy", *arguments, "-i", str(copy)])
        code = __main__.main()
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run_verb


@pytest.mark.usefixtures("never_waits")
def test_a_second_run_is_refused_and_told_by_whom(
    cluster: Cluster, hosts: list[Host], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Verbs, "restart", lambda _: None)
    with held(hosts, "upgrade, by anna at ops-1"):
        for host in hosts[:2]:
            host.facts()  # calls of the run itself go on
        code, said = run("restart")
        assert code == 1
        assert "node 1 (this machine): another keelmq-deploy works on this cluster: upgrade, by anna at ops-1" in said
        assert run("status")[0] == 0, "looking is always allowed"
        assert run("restart", "--dry-run")[0] == 0
    assert run("restart")[0] == 0


@pytest.mark.usefixtures("never_waits")
def test_hosts_that_were_held_are_free_after_a_refusal(hosts: list[Host]) -> None:
    second = hosts[1].begin_hold("upgrade, by anna at ops-1", 60.0)
    with second:
        assert second.stdout is not None
        assert json.loads(second.stdout.readline()) == {"held": True}
        with pytest.raises(HostError, match=r"node 2 .* upgrade, by anna at ops-1"), held(hosts, "restart"):
            pass
    with held(hosts, "restart"):
        pass


@pytest.mark.usefixtures("never_waits")
def test_bare_hosts_are_held_by_what_begins_a_cluster(hosts: list[Host], tmp_path: Path) -> None:
    """Two of these at a time would each bring a peer secret of its own."""
    bare = tmp_path / "hosts" / "node3"
    with held(hosts[2:], "restart"):
        assert not bare.exists()
    with (
        held(hosts[2:], "bootstrap, by anna at ops-1", claims=True),
        pytest.raises(HostError, match=r"node 3 .* bootstrap, by anna at ops-1"),
        held(hosts[2:], "bootstrap", claims=True),
    ):
        pass
    assert (bare / MARK).read_text() == OWNER.format(3)
    (tmp_path / "hosts" / "node2" / MARK).unlink()
    (tmp_path / "hosts" / "node2" / "letters").touch()
    with held(hosts[1:2], "bootstrap", claims=True):
        assert not (tmp_path / "hosts" / "node2" / MARK).exists(), "what somebody else made stays"


@pytest.fixture
def behind_ssh(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Host]]:
    """Return a function that has the hosts reached by an ssh of the test."""

    def reached(program: str, **values: object) -> list[Host]:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "ssh").write_text(program.format(**values))
        (tmp_path / "bin" / "ssh").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        path = cluster.inventory(tmp_path, ssh="shop")
        path.write_text(path.read_text().replace('id = "shop"', f'id = "shop"\npython = "{sys.executable}"', 1))
        inventory = read_inventory(path)
        return [Host(inventory, node) for node in inventory.nodes]

    return reached


@pytest.mark.parametrize("begun_s", [[], [60.0]], ids=["nobody else", "another run"])
def test_a_run_that_was_silent_changes_no_host_any_more(
    behind_ssh: Callable[..., list[Host]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun_s: list[float]
) -> None:
    """The machine of the tool slept, or its network was away: another run may have begun, and stopped a node."""
    monkeypatch.setattr(holding, "SILENCE_S", 0.01)
    hosts, root = behind_ssh(SSH_AWAY), tmp_path / "hosts" / "node2"
    with held(hosts, "drain 2, by anna at ops-1"):
        wait_for(lambda: host_root._holder(root) == ("", ""), "the silent run to be given up")
        with contextlib.ExitStack() as other:
            for silence_s in begun_s:
                process = other.enter_context(hosts[1].begin_hold("drain 3, by bert at ops-2", silence_s, name="b"))
                assert process.stdout is not None
                assert json.loads(process.stdout.readline()) == {"held": True}
            said = "drain 3, by bert at ops-2 works" if begun_s else "another one may have begun"
            calls: list[Callable[[], object]] = [
                *(lambda: hosts[1].stop(1.0), lambda: hosts[1].drain(drained=True), hosts[1].claim, hosts[1].destroy),
                *(lambda: hosts[1].put("etc/a", b"a"), lambda: hosts[1].install(b"no bundle", "a")),
                lambda: hosts[1].prepare({"etc/a": b"a"}, "/bin/true", "etc/a"),
            ]
            for call in calls:
                with pytest.raises(HostError, match=f"this run no longer holds the host, and {said}"):
                    call()
            hosts[1].facts()
    assert sorted(path.name for path in root.iterdir()) == [MARK, host_root.BUSY]


def test_a_run_that_has_lost_one_host_changes_none(hosts: list[Host], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run may reach that one alone."""
    with held(hosts, "restart"):
        hosts[0].drain(drained=True)
        process = RUN._held[1][1]
        process.kill()
        process.wait()
        with pytest.raises(HostError, match=r"node 2 .* no longer holds the host"):
            hosts[0].drain(drained=False)
        hosts[0].facts()


def test_a_host_that_was_not_held_is_changed_unless_another_run_holds_it(hosts: list[Host], tmp_path: Path) -> None:
    with held(hosts, "restart"):
        hosts[2].claim()  # it had no root
        hosts[2].drain(drained=True)
        with hosts[2].begin_hold("upgrade, by bert at ops-2", 60.0, name="b") as other:
            assert other.stdout is not None
            other.stdout.readline()
            with pytest.raises(HostError, match="another keelmq-deploy works on this cluster: upgrade, by bert"):
                hosts[2].drain(drained=False)
    assert (tmp_path / "hosts" / "node3" / "drained").exists()


def test_a_host_that_refuses_one_connection_is_held_all_the_same(
    behind_ssh: Callable[..., list[Host]], tmp_path: Path
) -> None:
    hosts = behind_ssh(SSH_REFUSED, calls=tmp_path / "calls", refused="1")
    with held(hosts[:2], "restart"):
        assert [(tmp_path / "hosts" / f"node{number}" / host_root.BUSY).exists() for number in (1, 2)] == [True, True]


def test_a_host_that_answers_and_cannot_be_held_is_named(behind_ssh: Callable[..., list[Host]], tmp_path: Path) -> None:
    hosts = behind_ssh(SSH_REFUSED, calls=tmp_path / "calls", refused="1 3")
    with pytest.raises(HostError, match=r"node 1 .* cannot be held"), held(hosts[:1], "restart"):
        pass


def test_no_more_hosts_are_begun_at_a_time_than_sshd_admits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sshd of a host that nodes share admits two connections of those that have not logged in yet (MaxStartups)."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(SSH_OF_TWO.format(slots=tmp_path))
    (tmp_path / "bin" / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    text = f'[cluster]\nid = "shop"\nroot = "{tmp_path}/hosts"\npython = "{sys.executable}"\n'
    for number in range(1, 7):
        text += f'[[node]]\nid = {number}\nssh = "shop"\npeer = "10.0.0.1:{7090 + number}"\n'
        text += f'url = "http://10.0.0.1:{7080 + number}"\n'
    (tmp_path / "shared.toml").write_text(text)
    inventory = read_inventory(tmp_path / "shared.toml")
    roots = [Path(node.root) for node in inventory.nodes]
    assert len(set(roots)) == 6
    for root, node in zip(roots, inventory.nodes, strict=True):
        root.mkdir(parents=True)
        (root / MARK).write_text(OWNER.format(node.id))
    with held([Host(inventory, node) for node in inventory.nodes], "upgrade", at_once=2):
        assert [(root / host_root.BUSY).exists() for root in roots] == [True] * 6


def test_a_run_that_is_gone_holds_nothing(hosts: list[Host], tmp_path: Path) -> None:
    """A machine without a network tells no host that its run ended."""
    silent = hosts[0].begin_hold("upgrade, by anna at ops-1", 0.01)
    with silent, held(hosts, "restart"):
        wait_for(lambda: silent.poll() is not None, "the silent run to be given up")
        assert (tmp_path / "hosts" / "node1" / host_root.BUSY).read_text().startswith("restart\n")


def test_a_run_shows_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "SIGN_EVERY_S", 0.0)
    over, pipe = threading.Event(), subprocess.PIPE
    ended = subprocess.Popen(["true"], stdin=pipe)
    with (
        contextlib.suppress(BrokenPipeError),
        ended,
        subprocess.Popen(["head", "-n", "3"], stdin=pipe, stdout=pipe) as living,
    ):
        ended.wait()
        signs = threading.Thread(target=holding._show_life, args=([ended, living], over))
        signs.start()
        assert living.stdout is not None
        assert living.stdout.read() == b"\n\n\n"
        over.set()
        signs.join()
