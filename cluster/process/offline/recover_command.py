"""The command `keelmqd recover`: a way back when a majority of the voters is lost for good.

It makes one stopped node, which survived, the only voter of a new cluster with its data. The new cluster has a name of
its own: nodes of the old one that come back after all are refused by it, and refuse it.
"""

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cluster.process.addresses import ConfigError, Peer, parse_peer
from cluster.process.data_directory import (
    REBUILD_FILE,
    DataDirectory,
    Identity,
    Unfinished,
    note_unfinished,
    read_identity,
    read_unfinished,
)
from cluster.process.exit_codes import ExitCode, StartupError
from cluster.process.offline.command_output import say
from cluster.process.offline.new_cluster import (
    SECOND_RECORD,
    append_configuration,
    apply_up_to,
    delete_join_tokens,
    present_configuration,
    rename_state,
)
from raft.errors import ProtocolError
from raft.membership import Configuration, Member, decode_configuration
from store.errors import IndexDamaged, IndexOutdated, IndexUnreadable
from store.features import FEATURES, UnknownFeatureLevel
from store.index.index import Index
from store.log.base import LogBase, StoredBase, read_base
from store.log.commit_log import CommitLog
from store.log.differs import DiffersMark
from store.log.disk import Disk, PosixDisk
from store.log.errors import DiskError, LogError
from store.log.front import cut_front, finish_front
from store.log.hard_state import HardState
from store.log.record import KIND_CONFIG, KIND_ENTRY
from store.log.watermarks import Watermarks
from store.snapshots.install import IndexDirectories, finish_install
from store.state.machine import StateMachine

COMMAND: Final = "recover"
CACHE_BYTES: Final = 1 << 20
UID_BYTES: Final = 16


def recover_command(data_dir: str, peer: str | None, *, accepted: bool, segment_bytes: int) -> int:
    """Print the state of the node's log and the possible losses; if the loss is `accepted`, make it the only voter.
    Return the exit code.

    Raises StartupError, which says what to do; nothing of the node's data was changed then, or the command has to be
    run again, and no node starts meanwhile.
    """
    try:
        place = None if peer is None else parse_peer(peer)
    except ConfigError as error:
        raise StartupError(ExitCode.BAD_CONFIG, str(error)) from None
    path = Path(data_dir)
    stored = read_identity(path)
    if place is not None and place.node_id != stored.node_id:
        raise StartupError(ExitCode.BAD_CONFIG, f"peer: this is node {stored.node_id}, not {place.node_id}")
    directory = DataDirectory.open(path, Identity(stored.cluster_id, stored.node_id), command=COMMAND)
    try:
        with _errors(data_dir):
            survivor = Survivor(directory, stored.node_id, place, segment_bytes)
            try:
                survivor.tell()
                if survivor.is_alone:
                    say("this node is the only voter already: start it; nothing was changed")
                    return ExitCode.STOPPED
                if accepted:
                    survivor.recover()
            finally:
                survivor.close()
            if accepted:
                survivor.finish()
    finally:
        directory.close()
    if accepted:
        say(
            f"node {stored.node_id} is the only voter of the new cluster {survivor.cluster_uid}. Start it, "
            "and add the others with empty data directories and --join (keelmq cluster add-node, promote)"
        )
    else:
        say("nothing was changed; do it with --i-accept-the-loss-of-what-only-others-had")
    return ExitCode.STOPPED


class Survivor:
    """The opened data of one stopped node. Call `close` before `finish`."""

    def __init__(self, directory: DataDirectory, node_id: int, place: Peer | None, segment_bytes: int) -> None:
        """Open index, log and hard state as a start does. Raises StartupError when they cannot be used for this."""
        self._directory = directory
        self._disk: Disk = PosixDisk()
        self._path = path = str(directory.path)
        work = read_unfinished(directory.path)
        self._node_id = node_id
        self.cluster_uid = secrets.token_hex(UID_BYTES) if work is None else work.cluster_uid
        _require_usable(self._disk, directory.path)
        with contextlib.ExitStack() as opened:
            self._watermarks = Watermarks.open(self._disk, path)
            opened.callback(self._watermarks.close)
            self._index = Index.open(f"{path}/index")
            opened.callback(self._index.close)
            self._state = StateMachine(self._index)
            self._hard_state = HardState(self._disk, f"{path}/hard_state")
            self._log = CommitLog.open(
                self._disk,
                f"{path}/log",
                segment_bytes=segment_bytes,
                cache_bytes=CACHE_BYTES,
                applied_index=self._state.applied_index,
                committed_index=self._watermarks.committed_index,
                may_be_new=False,
            )
            opened.callback(self._log.close)
            self._former = self._last_configuration()
            self._myself = self._member(place)
            self._require_whole()
            apply_up_to(min(self._watermarks.committed_index, self._log.last_index), self._state, self._log)
            self._opened = opened.pop_all()

    @property
    def is_alone(self) -> bool:
        """True when this node is the only member already, at that place: it needs no recovery, or has had it."""
        alone = self._former.members == (self._myself,)
        return alone and self._hard_state.voter and read_unfinished(self._directory.path) is None

    def tell(self) -> None:
        """Print the state of this node's log and the possible losses."""
        log, marks = self._log, self._watermarks
        voters = ", ".join(map(str, sorted(self._former.voters))) or "unknown"
        lines = [
            f"node {self._node_id}, term {self._hard_state.term}, voters {voters}",
            f"log: entries {log.first_index} to {log.last_index}, the last one of term {log.last_term}",
            f"state: applied up to entry {self._state.applied_index}, state hash {self._state.state_hash}",
            f"committed as far as this node knows: entry {marks.committed_index} here, entry {marks.known_index} of "
            f"term {marks.known_term} in the cluster",
        ]
        for peer, mark in sorted(marks.marks.items()):
            lines.append(
                f"node {peer} was last heard in term {mark.term}, and had acknowledged entry {mark.acked_index} to "
                "this node as leader"
            )
        if not self._hard_state.voter:
            lines.append("this node's disk had not caught up since it was new: it may lack more than the others had")
        if (marks.known_term, marks.known_index) > (log.last_term, log.last_index):
            lines.append(f"LOST: entries {log.last_index + 1} to {marks.known_index} at least, which were committed")
        uncommitted = log.last_index - max(marks.committed_index, self._state.applied_index)
        if uncommitted > 0:
            lines.append(f"the last {uncommitted} entries were perhaps never committed; they will be")
        lines.append(f"anything that others acknowledged after entry {log.last_index} without this node is lost")
        for line in lines:
            say(line)

    def recover(self) -> None:
        """Write the new configuration into log and state, and the new name into the state."""
        note_unfinished(self._directory.path, Unfinished(COMMAND, self.cluster_uid))
        log, hard_state = self._log, self._hard_state
        term = max(hard_state.term, log.last_term, self._watermarks.known_term) + 1
        if self._former.origin != self.cluster_uid:
            append_configuration(log, term, self._former, (self._myself,), self.cluster_uid)
        apply_up_to(log.last_index, self._state, log)
        delete_join_tokens(log, term, self._state, COMMAND)
        rename_state(self._index, self.cluster_uid)
        hard_state.set(term, None)
        hard_state.become_voter()
        log.drop_before(SECOND_RECORD + 1)
        self._front = self._front_to_cut()
        self._end_position = log.end_position

    def close(self) -> None:
        self._opened.close()

    def finish(self) -> None:
        """Cut the front of the log, and let a node start here again."""
        if self._front is not None:
            cut_front(self._disk, f"{self._path}/log", self._front, self._end_position)
        self._directory.rename_cluster(self.cluster_uid)
        self._directory.finish()

    def _front_to_cut(self) -> StoredBase | None:
        log = self._log
        if log.base.index >= SECOND_RECORD:
            return None
        base = LogBase(log.position_of(SECOND_RECORD + 1), SECOND_RECORD, log.term_at(SECOND_RECORD))
        stored = read_base(self._disk, f"{self._path}/log")
        return stored._replace(base=base, link=log.chain.at(SECOND_RECORD))

    def _last_configuration(self) -> Configuration:
        """Return the last configuration in log or state, committed or not."""
        indexes = self._log.indexes_of_kind(KIND_CONFIG, self._state.applied_index + 1)
        if indexes:
            return decode_configuration(self._log.entry(indexes[-1]).payload)
        return present_configuration(self._state)

    def _member(self, place: Peer | None) -> Member:
        if place is not None:
            return Member(self._node_id, place.address.host, place.address.port, place.url, True)
        found = self._former.find(self._node_id)
        if found is None:
            raise StartupError(
                ExitCode.BAD_CONFIG,
                f"peer: the log does not say where node {self._node_id} is; give --peer {self._node_id}=HOST:PORT=URL",
            )
        return Member(found.node_id, found.host, found.port, found.url, True)

    def _require_whole(self) -> None:
        log, state = self._log, self._state
        FEATURES.require_supported(self._former.level, "this log")
        if log.last_index < max(state.applied_index, SECOND_RECORD):
            raise StartupError(
                ExitCode.DATA_DIR_UNUSABLE,
                f"data_dir {self._path}: its log ends at entry {log.last_index} and its state at entry "
                f"{state.applied_index}: messages are missing; recover another node, or restore a backup",
            )
        if log.base.index < SECOND_RECORD and log.entry(SECOND_RECORD).kind == KIND_ENTRY:
            raise StartupError(
                ExitCode.DATA_DIR_UNUSABLE, f"data_dir {self._path}: entry {SECOND_RECORD} is not where a leader began"
            )


def _require_usable(disk: Disk, path: Path) -> None:
    """Finish what was decided for this directory. Raises StartupError when its data must not be used."""
    if (path / REBUILD_FILE).exists():
        raise StartupError(
            ExitCode.DATA_DIR_UNUSABLE, f"data_dir {path}: it was decided to discard it (cluster rebuild)"
        )
    difference = DiffersMark(disk, str(path)).difference
    if difference is not None:
        raise StartupError(
            ExitCode.DATA_DIR_UNUSABLE,
            f"data_dir {path}: this replica differs from the others ({difference}); recover another node",
        )
    if not (path / "log").is_dir() or not (path / "index").is_dir():
        raise StartupError(
            ExitCode.DATA_DIR_UNUSABLE, f"data_dir {path}: it has no log, or no index; is its volume mounted?"
        )
    finish_install(disk, str(path), IndexDirectories(str(path)))
    finish_front(disk, f"{path}/log")


@contextlib.contextmanager
def _errors(data_dir: str) -> Iterator[None]:
    try:
        yield
    except UnknownFeatureLevel as error:
        raise StartupError(ExitCode.WRONG_VERSION, f"data_dir {data_dir}: {error}") from None
    except DiskError as error:
        raise StartupError(ExitCode.DATA_DIR_UNUSABLE, f"data_dir {data_dir}: {error}") from error
    except (LogError, IndexDamaged, IndexOutdated, IndexUnreadable, ProtocolError) as error:
        raise StartupError(ExitCode.LOG_CORRUPT, f"data_dir {data_dir}: {error}") from error
