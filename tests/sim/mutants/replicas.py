"""Memory and disks that change data. No checker of the simulation looks for that: the nodes do."""

from typing import Any

import msgspec
from crc32c import crc32c

import store.log.commit_log
from raft.messages import Append
from raft.sender import Sender
from store.index import keys
from store.index.index import Index
from store.log import segment_files
from store.log.commit_log import CommitLog
from store.log.record import KIND_ENTRY
from store.log.segments import SegmentSet
from tests.sim.mutants.parts import swap_part
from tests.sim.threads import Running
from tests.sim.variant import Swap, mutant

NODE = 2
"""The one whose hardware is at fault."""
ONE_IN = 50
FLIPPED = 4
OUTCOME = keys.outcome(0)[:1]


def _is_due(owner: Any) -> bool:
    """Return True now and then, on one node."""
    node: Any = Running.node
    owner._flips = getattr(owner, "_flips", 0) + 1
    return node is not None and node.node_id == NODE and not owner._flips % ONE_IN


_put, _append = Index.put, CommitLog.append


def flips_a_bit_in_apply(index: Index, key: bytes, value: bytes) -> None:
    """A bit changes now and then in the data that one node's apply writes; the results stay right."""
    if key.startswith(OUTCOME) and _is_due(index):
        value = value[:-1] + bytes([value[-1] ^ FLIPPED])
    _put(index, key, value)


def flips_a_bit_before_it_appends(log: CommitLog, index: int, term: int, kind: int, payload: bytes) -> int:
    """An entry changes in a follower's memory after it was received and before it is written."""
    node: Any = Running.node
    if kind == KIND_ENTRY and not node.is_leader and _is_due(log):
        payload = payload[:-1] + bytes([payload[-1] ^ FLIPPED])
    return _append(log, index, term, kind, payload)


def flips_a_bit_of_a_sealed_segment(segments: SegmentSet) -> None:
    """The disk changes a record of a full segment, long after it was synced."""
    active = segments.active
    segment_files.seal_active(segments)
    index, file = segments.index_of(active), segments.file_of(active)
    at = index.offsets[len(index.offsets) // 2] + 60
    file.pwrite(bytes([file.pread(1, at)[0] ^ FLIPPED]), at)
    file.fdatasync()


class SendsOtherBytes(Sender):
    """A node is sent, under the same index and term, an entry that is not the leader's; its CRC is right."""

    def send(self, peer: int, message: Any) -> None:
        if (
            isinstance(message, Append)
            and peer == NODE
            and message.entries
            and len(message.entries[-1].payload) > FLIPPED
        ):
            last = message.entries[-1]
            payload = last.payload[:-1] + bytes([last.payload[-1] ^ FLIPPED])
            headers = message.message.headers
            header = msgspec.structs.replace(headers[-1], crc=crc32c(payload))
            changed = msgspec.structs.replace(message.message, headers=(*headers[:-1], header))
            message = Append(changed, [*message.entries[:-1], last._replace(payload=payload)])
        super().send(peer, message)


MUTANTS = (
    mutant(22, Swap(Index, "put", flips_a_bit_in_apply)),
    mutant(22, Swap(CommitLog, "append", flips_a_bit_before_it_appends)),
    mutant(22, Swap(store.log.commit_log, "seal_active", flips_a_bit_of_a_sealed_segment)),
    mutant(22, swap_part(SendsOtherBytes)),
)
