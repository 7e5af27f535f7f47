"""Has a closed log begin behind a record of its first segment, which `CommitLog.drop_before` cannot do.

    <20 digits>.tmp    the segment that will be the first one, named by its position; ignored by a log that is opened

The base is written when that file is durable; `finish_front` then gives it its name. Until this is done the log cannot
be opened, and the caller sees to it that nobody does.
"""

from typing import Final

from store.log.base import StoredBase, read_base, write_base
from store.log.disk import Disk
from store.log.segment import segment_name, start_of

_SUFFIX: Final = ".tmp"
_STEP_BYTES: Final = 1 << 20


def cut_front(disk: Disk, directory: str, stored: StoredBase, end_position: int) -> None:
    """Remove the records up to the base of `stored`, which lies in the first segment; durable on return. `end_position`
    is where the log ends. Raises DiskFull with nothing changed, and DiskError.
    """
    before, position = read_base(disk, directory).base, stored.base.position
    source = disk.open(f"{directory}/{segment_name(before.position)}")
    try:
        end = min(source.size(), end_position - before.position)
        target = disk.open(_path(directory, position), create=True)
        try:
            target.truncate(0)
            for at in range(position - before.position, end, _STEP_BYTES):
                target.pwrite(source.pread(min(_STEP_BYTES, end - at), at), at - (position - before.position))
            target.fdatasync()
        finally:
            target.close()
    finally:
        source.close()
    disk.sync_directory(directory)
    write_base(disk, directory, stored)
    finish_front(disk, directory)


def finish_front(disk: Disk, directory: str) -> None:
    """Finish what an interrupted `cut_front` has begun, or take it back; durable on return. An opening of the log then
    removes the former first segment.
    """
    position = read_base(disk, directory).base.position
    for name in disk.list(directory):
        start = start_of(name, _SUFFIX)
        if start == position and not disk.exists(f"{directory}/{segment_name(position)}"):
            disk.rename(f"{directory}/{name}", f"{directory}/{segment_name(position)}")
        elif start is not None:
            disk.unlink(f"{directory}/{name}")
    disk.sync_directory(directory)


def _path(directory: str, position: int) -> str:
    return f"{directory}/{position:020d}{_SUFFIX}"
