"""Tests the parts of a run without a cluster: the same seed gives the same plan, and nothing grows without bound."""

import itertools
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cluster.process.exit_codes import ExitCode
from deploy.local_nodes import free_ports
from tests.chaos.broken import DEFECTS
from tests.chaos.cluster import ChaosCluster, ClusterSettings
from tests.chaos.directory import PREFIX, RUNNING, RunDirectory
from tests.chaos.history import History
from tests.chaos.isolation import Machine
from tests.chaos.nemeses.catalogue import ALL_KINDS, FAMILIES, choose, summary_of
from tests.chaos.node import REPOSITORY, SERVES, STOPPED_CLEANLY, ChaosNode
from tests.chaos.observer import Observer
from tests.chaos.report import Figures, quantile, result_of
from tests.chaos.run import RunPlan, epoch_seeds
from tests.chaos.schedule import Heal, Round, rounds
from tests.chaos.self_test import verdict_on_defect
from tests.chaos.skewed_node import set_offset_ns
from tests.chaos.violations import Kind, Violations
from tests.e2e.cluster_process import wait_for
from tests.requirements import DYING_WITH_PARENT

EVERYTHING = Machine(None, None)
LOOPBACK = Machine("no namespaces", "no strace")


def plan(seed: int, count: int) -> list[Round]:
    return list(itertools.islice(rounds(ALL_KINDS, random.Random(seed)), count))


async def test_a_node_that_ends_is_not_waited_for(tmp_path: Path) -> None:
    violations, history = Violations(), History(tmp_path)
    settings = ClusterSettings(nodes=2, options=("--no-such-option",))
    cluster = ChaosCluster(settings, tmp_path, LOOPBACK, None, violations, history, lambda kind, text: None)
    async with cluster:
        cluster.start()
        with pytest.raises(RuntimeError, match=r"(?s)node \d ended with exit code 2:\n.*no-such-option"):
            await cluster.wait_ready()
        assert [node.starts for node in cluster.nodes.values()] == [1, 1], "the same options end it again"
    history.close()
    assert violations.counts[Kind.UNEXPECTED_EXIT] >= 1


@pytest.mark.process
def test_a_node_that_ends_late_of_a_full_disk_is_started_anew_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 746713: three nodes were still starting when the room came back, ended of it later, and stayed down."""
    DYING_WITH_PARENT.require()
    violations, history = Violations(), History(tmp_path)
    cluster = ChaosCluster(ClusterSettings(), tmp_path, LOOPBACK, None, violations, history, lambda kind, text: None)
    node = cluster.nodes[1]
    (node.data_dir / "log").write_text("a file in the place of a folder: the node cannot start")
    ends = frozenset({ExitCode.DATA_DIR_UNUSABLE})  # in the place of what ends a node whose disk is full
    monkeypatch.setattr("tests.chaos.cluster.EXITS_WHEN_FULL", ends)
    node.start()
    cluster.may_end_late = {1: node.starts}
    for _ in range(2):
        cluster.allow_exit(1, ends)
        wait_for(lambda: not node.running(), "the node to end")
        assert node.exit_code() in ends, node.log_tail()
        cluster._judge_end(node)
        assert node.starts == 2
    history.close()
    assert not violations.counts


def test_the_seed_decides_the_rounds() -> None:
    assert plan(1, 50) == plan(1, 50)
    assert plan(1, 50) != plan(2, 50)


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_comes_up_before_any_comes_again(seed: int) -> None:
    fired = [kind.name for each in plan(seed, len(ALL_KINDS)) for kind in each.kinds][: len(ALL_KINDS)]
    assert sorted(fired) == sorted(kind.name for kind in ALL_KINDS)


@pytest.mark.parametrize("seed", range(20))
def test_faults_at_the_same_time_are_of_different_families(seed: int) -> None:
    for each in plan(seed, 50):
        families = [kind.family for kind in each.kinds]
        assert len(set(families)) == len(families)


def test_what_cannot_be_had_is_said_with_the_reason() -> None:
    choice = choose("all", LOOPBACK, 3)
    assert {kind.family for kind in choice.kinds} == {"process", "clock", "disk", "membership", "stranger"}
    assert {kind.name for kind in choice.kinds if kind.family == "disk"} == {"wipe"}
    assert choice.skipped["halves"] == "no namespaces"
    assert choice.skipped["disk-full"] == "no namespaces"
    assert choice.skipped["sync-error"] == "no strace"
    assert any("no strace" in line and "slow-sync" in line for line in summary_of(choice.skipped))
    assert choose("all", EVERYTHING, 5).skipped == {}


def test_families_and_kinds_can_be_mixed() -> None:
    choice = choose("clock, kill-one", EVERYTHING, 3)
    assert {kind.name for kind in choice.kinds} == {"clock-forward", "clock-back", "clock-strobe", "kill-one"}
    assert set(FAMILIES) == {kind.family for kind in ALL_KINDS}
    for wanted in ("earthquake", "all,earthquake", ""):
        with pytest.raises(ValueError, match="unknown nemesis"):
            choose(wanted, EVERYTHING, 3)


def test_the_history_is_bounded_and_keeps_the_newest(tmp_path: Path) -> None:
    history = History(tmp_path, max_bytes=4_000)
    for number in range(1_000):
        history.write("send", number=number)
    history.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 4_000
    last = (tmp_path / "history.jsonl").read_bytes().splitlines()[-1]
    assert msgspec.json.decode(last)["number"] == 999


def test_details_of_violations_are_bounded_and_all_are_counted() -> None:
    violations = Violations()
    assert not violations
    for number in range(1_000):
        violations.add(Kind.LOST, str(number))
    assert violations.total == 1_000
    assert len(violations.kept) < 100


def test_leftovers_of_a_crash_are_removed_and_evidence_is_not(tmp_path: Path) -> None:
    crashed = tmp_path / f"{PREFIX}crashed"
    crashed.mkdir()
    (crashed / RUNNING).touch()  # the lock went with its process
    evidence, running = RunDirectory(tmp_path), RunDirectory(tmp_path)
    evidence.close(keep=True)
    clean = RunDirectory(tmp_path)
    assert not crashed.exists()
    assert evidence.path.exists()
    assert running.path.exists(), "another run that goes on is left alone"
    clean.close(keep=False)
    assert not clean.path.exists()
    running.close(keep=False)


@pytest.mark.parametrize(
    ("values", "share", "expected"), [([], 0.5, None), ([3.0, 1.0, 2.0], 0.5, 2.0), ([1.0], 0.99, 1)]
)
def test_quantiles(values: list[float], share: float, expected: float | None) -> None:
    assert quantile(values, share) == expected


def test_a_clock_file_holds_the_last_offset(tmp_path: Path) -> None:
    file = tmp_path / "clock"
    for offset_ns in (0, -5, 1 << 40):
        set_offset_ns(file, offset_ns)
        assert int.from_bytes(file.read_bytes(), "little", signed=True) == offset_ns


def epoch(heals: list[Heal], acked: int, disk_bytes: int) -> Figures:
    """Return figures of ten seconds of load."""
    return Figures(
        acked=acked,
        half_messages=1,
        unknown=2,
        refused=3,
        consumed=acked,
        redelivered=4,
        taken_back=2,
        dead_letters=1,
        expired=1,
        handler_calls=3,
        commits=2,
        transactions={"committed": 5, "prepared": acked},
        nemeses={"kill-one": 1},
        heals=heals,
        longest_silence_s=max(heals).ms / 1000,
        leaders=2,
        load_s=10.0,
        judge_s=1.0,
        disk_bytes=disk_bytes,
    )


class TestEpochs:
    @pytest.mark.parametrize(
        ("minutes", "epochs", "each"), [(60.0, 6, 10.0), (10.0, 1, 10.0), (0.4, 1, 0.4), (25.0, 3, 25 / 3)]
    )
    def test_a_run_is_cut_into_equal_epochs(self, minutes: float, epochs: int, each: float) -> None:
        plan = RunPlan(1, minutes, 10.0, 3, 100)
        assert plan.epochs == epochs
        assert plan.minutes_per_epoch == pytest.approx(each)

    def test_the_seed_decides_the_seeds_of_all_epochs(self) -> None:
        seeds = epoch_seeds(7, 6)
        assert seeds[0] == 7, "one epoch can be repeated alone"
        assert seeds == epoch_seeds(7, 6)
        assert seeds[:3] == epoch_seeds(7, 3)
        assert len(set(seeds)) == 6

    def test_the_result_is_of_all_epochs(self) -> None:
        violations = Violations()
        violations.add(Kind.LOST, "one")
        epochs = [
            epoch([Heal(10.0, "reset"), Heal(20.0, "mute")], 1_000, 8 << 20),
            epoch([Heal(3_500.0, "wipe")], 500, 1),
        ]
        result = result_of(epochs, violations, 64 << 20)
        assert (result["epochs"], result["acked"], result["acked_per_s"], result["rounds"]) == (2, 1_500, 75, 3)
        assert result["heal_ms"] == {"p50": 20.0, "p99": 3_500.0, "max": 3_500.0}
        assert result["slowest_heals_ms"] == [["wipe", 3_500.0], ["mute", 20.0], ["reset", 10.0]]
        assert result["longest_silence_ms"] == 3_500.0
        assert result["transactions"] == {"committed": 10, "prepared": 1_500}
        assert result["nemeses"] == {"kill-one": 2}
        assert (result["disk_mib"], result["memory_mib"]) == (8, 64)
        assert (result["lost"], result["violations"]) == (1, {"lost": 1})


class TestDefects:
    @pytest.mark.parametrize("name", [name for name, defect in DEFECTS.items() if not defect.in_client])
    def test_each_finds_what_it_breaks(self, name: str) -> None:
        """Installs the defect in a process of its own, because it stays installed."""
        program = f"from tests.chaos.broken import DEFECTS; DEFECTS[{name!r}].install()"
        done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def test_a_run_with_a_defect_passes_only_when_it_is_found(self) -> None:
        result = result_of([epoch([Heal(1.0, "wipe")], 1, 1)], Violations(), 1)
        assert not verdict_on_defect(result, "acks-alone")["guilty"]
        result["violations"] = {"lost": 2}
        found = verdict_on_defect(result, "acks-alone")
        assert found == {"broken": "acks-alone", "guilty": True, "caught_by": ["lost"], "caught_after_s": 11}


@pytest.mark.process
class TestTermination:
    """A node ends by SIGTERM at any time: by the signal before it serves, gracefully afterwards."""

    @pytest.fixture(autouse=True)
    def it_ends_with_the_test(self) -> None:
        DYING_WITH_PARENT.require()

    @pytest.fixture
    def node(self, tmp_path: Path) -> Iterator[ChaosNode]:
        http_port, peer_port = free_ports(2)
        node = ChaosNode(1, "127.0.0.1", http_port, peer_port, tmp_path, ())
        node.data_dir.mkdir(parents=True)
        node.arguments = ["--cluster-id", "chaos", "--node-id", "1", "--data-dir", str(node.data_dir)]
        node.arguments += ["--peer", node.peer_option]
        yield node
        node.kill()

    def test_a_node_that_starts_may_end_by_the_signal(self, node: ChaosNode) -> None:
        node.start()
        node.terminate()
        wait_for(lambda: not node.running(), "the node to end")
        assert node.exit_code() in node.exits_allowed

    def test_a_node_that_serves_may_not(self, node: ChaosNode) -> None:
        node.start()
        wait_for(lambda: SERVES in node.log_path.read_bytes(), "the node to serve")
        node.terminate()
        wait_for(lambda: not node.running(), "the node to end")
        assert node.exits_allowed == {STOPPED_CLEANLY}
        assert node.exit_code() == STOPPED_CLEANLY, node.log_tail()


class TestObserver:
    @pytest.fixture
    def observer(self, tmp_path: Path) -> Iterator[Observer]:
        self.violations = Violations()
        history = History(tmp_path)
        cluster = ChaosCluster(
            ClusterSettings(), tmp_path, LOOPBACK, None, self.violations, history, lambda kind, text: None
        )
        yield Observer(cluster)
        history.close()

    @staticmethod
    def answer(term: int, role: str = "follower", index: int = 7, state_hash: str = "a") -> dict[str, Any]:
        return {
            "role": role,
            "term": term,
            "applied_index": index,
            "commit_index": index,
            "hash_index": index,
            "state_hash": state_hash,
        }

    def test_innocent(self, observer: Observer) -> None:
        observer.judge(1, self.answer(3, "leader"), 1)
        observer.judge(2, self.answer(3), 1)
        observer.judge(2, self.answer(4, "leader", index=8, state_hash="b"), 1)
        assert self.violations.counts == {}
        assert observer.leaders == {3: 1, 4: 2}

    def test_two_leaders_in_one_term(self, observer: Observer) -> None:
        observer.judge(1, self.answer(3, "leader"), 1)
        observer.judge(2, self.answer(3, "leader"), 1)
        assert self.violations.counts == {Kind.TWO_LEADERS: 1}

    def test_a_term_that_goes_back(self, observer: Observer) -> None:
        observer.judge(1, self.answer(3), 1)
        observer.judge(1, self.answer(2), 2)
        assert self.violations.counts == {Kind.TERM_WENT_BACK: 1}

    def test_a_lost_disk_knows_no_term(self, observer: Observer) -> None:
        observer.judge(1, self.answer(3), 1)
        observer.judge(1, self.answer(0), 2, disks_lost=1)
        assert self.violations.counts == {}

    def test_equal_prefixes_with_different_state(self, observer: Observer) -> None:
        observer.judge(1, self.answer(3), 1)
        observer.judge(2, self.answer(3, state_hash="b"), 1)
        assert self.violations.counts == {Kind.STATE_DIFFERS: 1}
