"""RocksDB stops the writes of an index, as it does when its flushes or compactions do not keep up with a slow disk."""

from store.index.index import Index

_STOP, _COMPACT = ("level0_slowdown_writes_trigger", "level0_stop_writes_trigger"), "level0_file_num_compaction_trigger"


def stop_writes(index: Index) -> None:
    """Have RocksDB stop the writes: the number of files at level 0 stands for a disk that does not keep up."""
    if not index.figures().file_bytes:
        index.flush()
    index._database.set_options({_COMPACT: "100", **dict.fromkeys(_STOP, "1")})
    assert index.figures().is_write_stopped


def go_on(index: Index) -> None:
    """Have RocksDB take writes again."""
    index._database.set_options(dict.fromkeys(_STOP, "50"))
