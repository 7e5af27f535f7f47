"""The simulated surroundings do what they say: links, disks, threads, frozen nodes."""

from random import Random
from typing import Any

import pytest

from store.log.commit_log import CommitLog

from .disk import SYNC_US_MAX, TimedDisk
from .fiber import Fiber, FiberKilled
from .index_files import MemoryFiles, RocksFiles
from .network import LinkProfile, Network
from .network_faults import NetworkFaults
from .world import OutOfSteps, World


class Recorder:
    """An endpoint that remembers."""

    incarnation = ""

    def __init__(self) -> None:
        self.received: list[Any] = []
        self.links: list[str] = []

    def receive(self, source: int, message: Any) -> None:
        self.received.append(message)

    def link_up(self, peer: int) -> None:
        self.links.append(f"+{peer}")

    def link_down(self, peer: int) -> None:
        self.links.append(f"-{peer}")


def connect(profile: LinkProfile) -> tuple[World, Network, Recorder, Recorder]:
    world = World(1)
    network = Network(world, (1, 2), profile)
    one, two = Recorder(), Recorder()
    network.attach(1, one)
    network.attach(2, two)
    world.run(1_000_000)
    assert network.connected(1, 2)
    return world, network, one, two


def test_events_of_one_instant_run_in_the_order_they_were_scheduled() -> None:
    world = World(0)
    seen: list[str] = []
    world.after(5, lambda: seen.append("b"))
    world.after(5, lambda: seen.append("c"))
    world.after(1, lambda: seen.append("a"))
    assert not world.run(4)
    assert (seen, world.now_us) == (["a"], 4)
    world.run(10)
    assert seen == ["a", "b", "c"]


def test_a_run_ends_at_its_limit_of_steps() -> None:
    world = World(0, steps_max=2)
    for _ in range(3):
        world.after(1, lambda: None)
    with pytest.raises(OutOfSteps):
        world.run(10)


def test_a_faultless_link_keeps_order_and_loses_nothing() -> None:
    world, network, _, two = connect(LinkProfile(delay_us_max=50_000))
    for number in range(200):
        assert network.send(1, 2, number)
    world.run(1_000_000)
    assert two.received == list(range(200))


def test_a_faulty_link_loses_doubles_and_reorders() -> None:
    profile = LinkProfile(delay_us_max=50_000, loss_probability=0.1, duplicate_probability=0.1, reorder_probability=0.3)
    world, network, _, two = connect(profile)
    for number in range(500):
        network.send(1, 2, number)
    world.run(1_000_000)
    assert len(set(two.received)) < 500
    assert len(two.received) > len(set(two.received))
    assert two.received != sorted(two.received)


def test_a_reset_loses_what_is_under_way_and_both_ends_are_told() -> None:
    world, network, one, two = connect(LinkProfile())
    network.send(1, 2, "lost")
    assert network.reset(1, 2)
    assert not network.send(1, 2, "refused")
    world.run(1_000_000)
    network.send(1, 2, "after")
    world.run(1_000_000)
    assert two.received == ["after"]
    assert one.links == ["+2", "-2", "+2"]


def test_a_cut_is_one_way_and_silent() -> None:
    for loss_probability, expected in ((0.0, ["held"]), (1e-9, [])):
        world, network, one, two = connect(LinkProfile(loss_probability=loss_probability))
        network.cut(1, 2)
        assert network.send(1, 2, "held")
        assert network.send(2, 1, "back")
        world.run(1_000_000)
        assert (two.received, one.received) == ([], ["back"])
        network.uncut(1, 2)
        world.run(1_000_000)
        assert two.received == expected
        assert one.links == ["+2"]


def test_a_link_is_mended_when_the_last_fault_on_it_is_over() -> None:
    """The end of a short cut mended the link for a long one too: in two of five seeds, a quarter of all cut links."""
    world, network, _, two = connect(LinkProfile())
    faults = NetworkFaults(world, network, lambda: True)
    faults._set_cut([(1, 2)], cut=True)
    faults._set_cut([(1, 2)], cut=True)
    network.send(1, 2, "held")
    faults._set_cut([(1, 2)], cut=False)
    world.run(1_000_000)
    assert two.received == []
    faults._set_cut([(1, 2)], cut=False)
    world.run(1_000_000)
    assert two.received == ["held"]


def test_a_disk_is_full_until_the_last_fault_on_it_is_over() -> None:
    disk = TimedDisk(World(0), Random(0))
    for full in (1, 2):
        disk.fill(0, lambda: None)
        assert disk.is_full, full
    disk.make_space()
    assert disk.is_full
    disk.make_space()
    disk.make_space()
    assert not disk.is_full


def test_a_fiber_runs_only_when_resumed() -> None:
    seen: list[str] = []

    def call() -> None:
        seen.append("begun")
        Fiber.pause()
        seen.append("ended")

    fiber = Fiber(call)
    assert seen == []
    fiber.resume()
    assert (seen, fiber.finished) == (["begun"], False)
    fiber.resume()
    assert (seen, fiber.finished) == (["begun", "ended"], True)


def test_a_killed_fiber_unwinds_and_errors_come_out_of_resume() -> None:
    seen: list[str] = []

    def call() -> None:
        try:
            Fiber.pause()
        except FiberKilled:
            seen.append("killed")
            raise

    fiber = Fiber(call)
    fiber.resume()
    fiber.kill()
    assert (seen, fiber.finished) == (["killed"], True)
    with pytest.raises(ZeroDivisionError):
        Fiber(lambda: 1 // 0).resume()


def test_a_killed_fiber_ends_though_it_catches_everything_once() -> None:
    """The thread that syncs reports what a sync raised, and waits for the next one."""

    def call() -> None:
        try:
            Fiber.pause()
        except BaseException:
            Fiber.pause()

    fiber = Fiber(call)
    fiber.resume()
    fiber.kill()
    assert fiber.finished


def test_a_sync_covers_what_was_written_before_it_began() -> None:
    world = World(0)
    disk = TimedDisk(world, Random(0))
    log = CommitLog.open(disk, "/data/log", segment_bytes=4096, cache_bytes=0)
    log.append(2, 1, 1, b"before")
    fiber = Fiber(log.sync)
    fiber.resume()
    log.append(3, 1, 1, b"during")
    assert log.synced_index == 1
    world.run(2 * SYNC_US_MAX)
    assert fiber.finished
    assert log.synced_index == 2
    disk._random = Random(1)
    segment = disk.durable_bytes(f"/data/log/{0:020}.log")
    assert segment is not None
    assert b"before" in segment
    assert b"during" not in segment


def test_an_index_is_never_open_with_compactions_of_its_own() -> None:
    """Seed 410443 copied the files of a dead node's index while a compaction that opening had begun replaced them."""
    rocks = RocksFiles()
    with rocks.installed():
        index = rocks.open("one")
        kept = [path.read_text() for path in (rocks._directory / "one").glob("OPTIONS-*")]  # one per change of options
        index.close()
    assert kept
    assert all("disable_auto_compactions=true" in text for text in kept)


def test_the_index_in_memory_reads_writes_and_forgets_as_rocksdb() -> None:
    random = Random(5)
    steps = [(random.choice("ppppdrlsf"), random.randrange(40), random.randrange(40)) for _ in range(600)]
    seen: list[list[object]] = []
    for files in (RocksFiles(), MemoryFiles()):
        found: list[object] = []
        with files.installed():
            index = files.open("1")
            for kind, one, other in steps:
                key, end = b"k%02d" % min(one, other), b"k%02d" % max(one, other)
                if kind == "p":
                    index.put(key, b"%d" % other)
                elif kind == "d":
                    index.delete(key)
                elif kind == "r":
                    index.delete_range(key, end)
                elif kind == "l":
                    index.commit()
                    found.append(index.last(key, end))
                elif kind == "s":
                    found.append([list(index.scan(key, end)), index.get(key)])
                else:
                    index.commit()
                    index.flush()
                    files.copy("1", f"copy {len(found)}")
                    copy = files.open(f"copy {len(found)}")
                    found.append(list(copy.scan(b"", b"\xff")))
                    copy.close()
            index.put(b"late", b"not flushed")
            index.commit()
            files.copy("1", "2")
            index.close()
            files.remove("1")
            heir = files.open("2")
            found.append(list(heir.scan(b"", b"\xff")))
            heir.close()
        seen.append(found)
    assert seen[0] == seen[1]
