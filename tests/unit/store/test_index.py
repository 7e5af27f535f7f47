"""The index reads its own staged writes, and commits all of them or none."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.errors import IndexDamaged
from store.index import keys
from store.index.index import FLUSH_FILES_MAX, Index
from store.index.rocksdb_options import STOP_FILES
from store.steps import ITEMS_PER_STEP
from tests.unit.store.counted_key import CountedKey
from tests.unit.store.stopped_index import go_on, stop_writes


def contents(index: Index) -> list[tuple[bytes, bytes]]:
    return [(key, value) for key, value in index.scan(b"", b"\xff") if not key.startswith(b"m")]


def test_staged_writes_are_read_before_they_are_committed(index: Index) -> None:
    index.put(b"a", b"1")
    index.commit()
    index.put(b"b", b"2")
    index.delete(b"a")
    assert index.get(b"a") is None
    assert index.get(b"b") == b"2"
    assert contents(index) == [(b"b", b"2")]


def test_prefixes_with_which_keys_begin_are_told_stored_or_staged(index: Index) -> None:
    for key in (b"stored-1", b"z"):
        index.put(key, b"")
    index.commit()
    index.put(b"staged-1", b"")
    prefixes = [b"stored-", b"staged-", b"stored-1", b"stored-2", b"staged-0", b"a", b"zz"]
    assert index.beginning(prefixes) == [True, True, True, False, False, False, False]
    index.commit()
    assert index.beginning(prefixes) == [True, True, True, False, False, False, False]


def test_what_is_not_committed_is_gone_after_reopening(tmp_path: Path) -> None:
    path = str(tmp_path / "index")
    index = Index.open(path)
    index.put(b"a", b"1")
    index.commit()
    index.put(b"b", b"2")
    index.close()
    index = Index.open(path)
    assert contents(index) == [(b"a", b"1")]
    index.close()


def test_a_deleted_range_hides_what_was_there_and_not_what_comes_after(index: Index) -> None:
    index.put(b"r1", b"committed")
    index.commit()
    index.put(b"r2", b"staged before")
    index.delete_range(b"r", b"s")
    assert index.get(b"r1") is None
    assert index.get(b"r2") is None
    index.put(b"r3", b"staged after")
    expected = [(b"r3", b"staged after")]
    assert contents(index) == expected
    index.commit()
    assert contents(index) == expected
    assert index.get(b"r1") is None


def test_last_is_the_greatest_key_in_the_range(index: Index) -> None:
    for key in (b"r1", b"r3", b"r5", b"s1"):
        index.put(key, key)
    index.commit()
    assert index.last(b"r", b"r4") == (b"r3", b"r3")
    assert index.last(b"r", b"r5") == (b"r3", b"r3")
    assert index.last(b"r", b"s") == (b"r5", b"r5")
    assert index.last(b"r2", b"r3") is None
    assert index.last(b"t", b"u") is None


def test_last_sees_what_is_staged(index: Index) -> None:
    for key in (b"r1", b"r3", b"r5"):
        index.put(key, key)
    index.commit()
    index.put(b"r4", b"new")
    assert index.last(b"r", b"s") == (b"r5", b"r5")
    assert index.last(b"r", b"r5") == (b"r4", b"new")
    index.put(b"r5", b"changed")
    assert index.last(b"r", b"s") == (b"r5", b"changed")
    index.delete(b"r5")
    assert index.last(b"r", b"s") == (b"r4", b"new")
    index.delete(b"r4")
    assert index.last(b"r", b"s") == (b"r3", b"r3")
    index.delete_range(b"r2", b"r9")
    assert index.last(b"r", b"s") == (b"r1", b"r1")
    index.put(b"r3", b"again")
    assert index.last(b"r", b"s") == (b"r3", b"again")
    assert index.last(b"r0", b"r1") is None
    index.commit()
    assert index.last(b"r", b"s") == (b"r3", b"again")


def test_an_index_of_another_format_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "index")
    index = Index.open(path)
    index.put(keys.META_FORMAT, b"99")
    index.commit()
    index.close()
    with pytest.raises(IndexDamaged, match="99"):
        Index.open(path)


def test_an_index_without_a_format_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "index")
    index = Index.open(path)
    index.put(b"x", b"1")
    index.delete(keys.META_FORMAT)
    index.commit()
    index.close()
    with pytest.raises(IndexDamaged):
        Index.open(path)


def test_an_index_that_rocksdb_cannot_open_is_named(tmp_path: Path) -> None:
    path = tmp_path / "index"
    Index.open(str(path)).close()
    (path / "CURRENT").write_bytes(b"nonsense")
    with pytest.raises(IndexDamaged, match="cannot be opened"):
        Index.open(str(path))


def test_an_index_has_one_owner(index: Index, tmp_path: Path) -> None:
    with pytest.raises(IndexDamaged, match="lock"):
        Index.open(str(tmp_path / "index"))


Operation = Callable[[Index, dict[bytes, bytes]], None]


def _put(key: bytes, value: bytes) -> Operation:
    def run(index: Index, model: dict[bytes, bytes]) -> None:
        index.put(key, value)
        model[key] = value

    return run


def _delete(key: bytes) -> Operation:
    def run(index: Index, model: dict[bytes, bytes]) -> None:
        index.delete(key)
        model.pop(key, None)

    return run


def _delete_range(begin: bytes, end: bytes) -> Operation:
    def run(index: Index, model: dict[bytes, bytes]) -> None:
        index.delete_range(min(begin, end), max(begin, end))
        for key in [key for key in model if min(begin, end) <= key < max(begin, end)]:
            del model[key]

    return run


def _commit(index: Index, model: dict[bytes, bytes]) -> None:
    index.commit()


def _nothing(index: Index, model: dict[bytes, bytes]) -> None:
    pass


_keys = st.text("rst", min_size=1, max_size=3).map(str.encode)
_operations = st.one_of(
    st.builds(_put, _keys, st.binary(max_size=3)),
    st.builds(_delete, _keys),
    st.builds(_delete_range, _keys, _keys),
    st.just(_commit),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(_operations, max_size=30))
def test_reads_as_a_dict_does_whatever_is_staged(index: Index, operations: list[Operation]) -> None:
    index.delete_range(b"r", b"u")
    model: dict[bytes, bytes] = {}
    for operation in operations:
        operation(index, model)
        assert contents(index) == sorted(model.items())
        assert all(index.get(key) == value for key, value in model.items())
        for end in (b"rs", b"s", b"st", b"u"):
            below = [pair for pair in model.items() if b"r" <= pair[0] < end]
            assert index.last(b"r", end) == max(below, default=None)
    index.commit()
    assert contents(index) == sorted(model.items())


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(_operations, max_size=12), st.lists(_operations, max_size=12))
def test_a_scan_sees_what_is_staged_while_it_is_read_wherever_that_began(
    index: Index, before: list[Operation], during: list[Operation]
) -> None:
    """The result of a scan must not depend on the times of commits: replicas commit at different entries."""
    changes = [operation for operation in during if operation is not _commit]
    found = []
    for commits in (True, False):
        index.delete_range(b"r", b"u")
        model: dict[bytes, bytes] = {}
        for operation in before:
            operation(index, model)
        if commits:
            index.commit()
        seen = []
        ahead = iter(changes)
        for pair in index.scan(b"r", b"u"):
            seen.append(pair)
            next(ahead, _nothing)(index, model)
        found.append(seen)
    assert found[0] == found[1]


def test_reading_what_is_staged_costs_the_same_however_much_that_is(index: Index) -> None:
    def comparisons(staged: int) -> float:
        """Count the comparisons of one scan, one `last` and one deleted range per key, while `staged` keys are
        staged.
        """
        CountedKey.comparisons = 0
        for number in range(staged):
            index.put(CountedKey(b"r%08d" % (number * 7_919 % staged)), b"")
            prefix = b"r%08d" % (number * 7_907 % staged)
            next(index.scan(prefix, keys.after(prefix)), None)
            index.last(prefix, keys.after(prefix))
            index.delete_range(b"q%08d" % number, b"q%08d" % (number + 1))
        index.commit()
        return CountedKey.comparisons / staged

    few, many = comparisons(250), comparisons(4_000)
    assert many < 3 * few, "a search in sorted keys takes some steps more among 16 times as many"


def test_named_keys_of_a_range_are_touched_each_and_written_as_one(index: Index) -> None:
    names = [b"r%d" % number for number in range(4)]
    index.put_all([(name, b"") for name in names[:2]])
    index.commit()
    index.put_all([(name, b"") for name in names[2:]])
    index.touched.clear()
    index.delete_named(b"r", b"s", names)
    assert index.touched == [(name,) for name in names]
    assert (contents(index), index.staged_rows) == ([], 0)
    index.put(b"r1", b"anew")
    index.commit()
    assert contents(index) == [(b"r1", b"anew")]


def test_after_is_beyond_every_key_with_the_prefix() -> None:
    assert keys.after(b"r") == b"s"
    assert keys.after(b"r\x00\xff") == b"r\x01"
    assert keys.after(b"r\xff\xff") == b"s"


def test_a_key_costs_a_few_blocks_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up must not read the filter of a whole file: with many keys it does not fit into the cache."""
    monkeypatch.setattr("store.index.rocksdb_options.BLOCK_CACHE_BYTES", 64 * 1024)
    path = str(tmp_path / "index")
    index = Index.open(path)
    for number in range(200_000):
        index.put(b"k%012d" % (number * 7_919 % 1_000_000), b"value")
    index.commit()
    index.flush()
    index._database.compact_range(None, None)  # what is new is kept in memory whatever its size
    index.close()
    index = Index.open(path)
    assert index._database.property_value("rocksdb.block-cache-capacity") == str(64 * 1024), "after a restart too"

    def bytes_read() -> int:
        (line,) = [line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar")]
        return int(line.split()[1])

    assert index.get(b"k%012d" % 7_919) == b"value"
    lookups = 500
    before = bytes_read()
    for number in range(lookups):
        assert index.get(b"k%012d-missing" % (number * 1_999)) is None
    assert (bytes_read() - before) / lookups < 32 * 1024
    index.close()


def test_stalls_are_counted_though_nothing_runs_while_they_last(index: Index) -> None:
    """The number of files at level 0 stands for a disk that does not keep up."""
    assert index.figures().write_stops == 0
    limits = dict.fromkeys(("level0_slowdown_writes_trigger", "level0_stop_writes_trigger"), "2")
    index._database.set_options({"level0_file_num_compaction_trigger": "100", **limits})
    for key in (b"a", b"b"):
        index.put(key, b"1")
        index.commit()
        index.flush()
    assert index.figures().write_stops == 1
    index._database.set_options(dict.fromkeys(limits, "50"))
    index.put(b"c", b"1")
    index.commit()
    assert not index.figures().is_write_stopped
    assert index.figures().write_stops == 1


def test_a_write_that_rocksdb_would_stop_comes_back_undone(index: Index) -> None:
    index.put(b"a", b"1")
    index.commit()
    stop_writes(index)
    index.put(b"a", b"2")
    index.delete(b"b")
    for _ in range(3):
        assert not index.try_commit()
        assert index.get(b"a") == b"2"
        assert index._database.get(b"a") == b"1"
    assert index.figures().write_waits == 1
    go_on(index)
    assert index.try_commit()
    assert index._database.get(b"a") == b"2"
    assert index.try_commit(), "nothing is staged"


def test_a_write_that_was_prepared_is_not_lost_when_it_has_to_wait(index: Index) -> None:
    index.put(b"a", b"1")
    index.commit()
    stop_writes(index)
    index.put_all([(b"k%d" % each, b"1") for each in range(2 * ITEMS_PER_STEP)])
    for _ in index.prepare_commit():
        pass
    index.put(b"a", b"2")
    assert not index.try_commit()
    go_on(index)
    assert index.try_commit()
    assert len(list(index.scan(b"", b"z"))) == 2 * ITEMS_PER_STEP + 2, "with the format"


def test_no_flush_is_begun_for_which_rocksdb_would_wait_for_compactions(index: Index) -> None:
    """RocksDB makes who asks for one wait one file before it would stop writes."""
    index._database.set_options({"level0_file_num_compaction_trigger": "100"})
    for number in range(FLUSH_FILES_MAX):
        index.put(b"a", b"%d" % number)
        index.commit()
        index.flush()
    index.put(b"a", b"1")
    index.commit()
    assert not index.begin_flush()
    assert not index.figures().is_write_stopped
    index._database.compact_range(None, None)
    assert index.begin_flush()


def test_rocksdb_never_delays_a_write(index: Index) -> None:
    """A delay would hold the thread; a write that is stopped comes back."""
    index._database.set_options({"level0_file_num_compaction_trigger": "100"})
    for number in range(STOP_FILES):
        index.put(b"a", b"%d" % number)
        assert index.try_commit()
        assert not index._database.property_int_value("rocksdb.actual-delayed-write-rate")
        if number < STOP_FILES - 2:  # one more file, and RocksDB would have the flush wait for compactions
            index.flush()
    assert index._database.property_value("rocksdb.num-files-at-level0") == str(STOP_FILES - 2)


def test_pairs_are_those_of_the_call_whatever_is_committed_before_and_between(index: Index) -> None:
    for key in (b"r1", b"r5"):
        index.put(key, b"before")
    index.commit()
    pairs = index.pairs()
    for key in (b"r0", b"r5", b"z"):
        index.put(key, b"after")
    index.commit()
    first = next(pairs)
    index.put(b"zz", b"later")
    index.delete(b"r1")
    index.commit()
    found = [pair for pair in (first, *pairs) if pair[0].startswith((b"r", b"z"))]
    assert found == [(b"r1", b"before"), (b"r5", b"before")]


def test_a_scan_goes_on_with_what_is_committed_behind_its_last_pair(index: Index) -> None:
    index.put(b"r1", b"")
    index.commit()
    scan = index.scan(b"r", b"s")
    assert next(scan)[0] == b"r1"
    index.put(b"r2", b"")
    index.commit()
    index.put(b"z", b"")
    index.commit()
    assert [key for key, _ in scan] == [b"r2"]
