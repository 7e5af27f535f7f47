"""Damage to the synced data of a minority of the nodes at a time, so that the others can make up for it.

A node must notice damage when it reads it, stop with the name of the damage, and change nothing. The one case that a
single log cannot decide is left out: damage to the last group that was synced, before anything else on that disk says
that it was (docs/powerloss.md).
"""

import struct
from collections.abc import Mapping
from random import Random

from .checkers.durable_log import RECORD_HEADER_BYTES, DurableRecord
from .disk import Damage, TimedDisk
from .fault import Action, Fault, impaired, minority_impaired
from .replica import HARD_STATE, LOG, Replica
from .world import World

FLIP_TARGETS = (*("payload",) * 4, *("header",) * 2, *("hard_state",) * 2, "mark", "sidecar")
FILE_DAMAGES = ("segment_lost", "segment_cut", "segment_grown", "segment_padded", "tail_lost")
MARK = f"{LOG}/synced"
MARK_SLOTS, MARK_SLOT_BYTES = (0, 4096), 28
_FLOOR = struct.Struct("<4sB3xQQ")
RECORD_TRIES = 8
SURPLUS_BYTES = 100

Aim = tuple[Damage, int, int]  # the damage to do, and the bytes of the file of which one is hit: begin, length


class DamageFaults:
    def __init__(self, world: World, replicas: Mapping[int, Replica]) -> None:
        self._world, self._replicas = world, replicas
        self.table: dict[str, Action] = {"bit_flip": self._bit_flip, "file_damage": self._file_damage}

    # --- one bit, in a node that runs or is down ---------------------------------------------------------------

    def _bit_flip(self, fault: Fault) -> None:
        replica = fault.random.choice(list(self._replicas.values()))
        disk = replica.disk
        aim = None if disk.standing_damages else self._aim(fault.random, replica)
        if aim is None:
            return
        damage, begin, length = aim
        if damage.must_be_noticed and not minority_impaired(self._replicas, replica.node_id):
            return
        disk.flip(damage.path, begin + fault.random.randrange(length), 1 << fault.random.randrange(8))
        disk.damages.append(damage)
        fault.happened(replica.node_id, damage.what, damage.index or damage.path)

    def _aim(self, random: Random, replica: Replica) -> Aim | None:
        target = random.choice(FLIP_TARGETS)
        if target in ("payload", "header"):
            return self._aim_at_record(random, replica, target)
        path, begin = {"hard_state": (HARD_STATE, 0), "mark": (MARK, random.choice(MARK_SLOTS))}.get(target, ("", 0))
        if target == "sidecar":
            path = random.choice([name for name in replica.disk.durable_names(LOG) if name.endswith(".idx")] or [""])
        length = len(replica.disk.pristine(path) or b"") - begin
        if length <= 0:
            return None
        damage = Damage(target, path, is_flip=True, must_be_noticed=target == "hard_state")
        return damage, begin, min(length, MARK_SLOT_BYTES) if target == "mark" else length

    def _aim_at_record(self, random: Random, replica: Replica, target: str) -> Aim | None:
        """Return a record that a majority holds without this node, and that this node's disk marks as synced."""
        durable = replica.durable
        last = durable.at(durable.last_index)
        if last is None:
            return None
        for _ in range(RECORD_TRIES):
            index = random.randint(durable.first_index, durable.last_index)
            record = durable.at(index)
            assert record is not None
            if record.position < last.synced_position and self._is_held_by_others(replica, index, record):
                damage = Damage(target, record.path, record.position, index, is_flip=True)
                if target == "header" or not record.payload_bytes:
                    return damage, record.offset, RECORD_HEADER_BYTES
                return damage, record.offset + RECORD_HEADER_BYTES, record.payload_bytes
        return None

    def _is_held_by_others(self, replica: Replica, index: int, record: DurableRecord) -> bool:
        unsound = impaired(self._replicas) | {replica.node_id}
        sound = [other for node_id, other in self._replicas.items() if node_id not in unsound]
        holders = [other for other in sound if other.durable.term_at(index) == record.term]
        return len(holders) > len(self._replicas) // 2

    # --- whole files, of a node that is down -------------------------------------------------------------------

    def _file_damage(self, fault: Fault) -> None:
        """Remove a segment, or change its length, while its node is down."""
        replica = fault.random.choice(list(self._replicas.values()))
        if replica.disk.standing_damages or not minority_impaired(self._replicas, replica.node_id):
            return
        replica.crash(power_loss=fault.random.random() < 0.5)
        self._world.after(1, lambda: self._damage_file(fault, replica))

    def _damage_file(self, fault: Fault, replica: Replica) -> None:
        if replica.alive or not replica.buried:
            return
        disk, what = replica.disk, fault.random.choice(FILE_DAMAGES)
        segments = [path for path in disk.durable_names(LOG) if path.endswith(".log")]
        sealed, last = segments[:-1], segments[-1:]
        path = fault.random.choice((last if what == "tail_lost" else sealed) or [""])
        size = len(disk.pristine(path) or b"")
        if what == "tail_lost":  # only what was synced at the last start, rollover or truncation is sure to be known
            size = min(size, _floor(disk) - int(path[-24:-4] or 0))
        if size <= 0:
            return
        replica.durable.remember()
        if what == "segment_lost":
            disk.remove(path)
        elif what in ("segment_cut", "tail_lost"):
            disk.cut(path, fault.random.choice((0, fault.random.randrange(size))))
        else:
            disk.cut(path, size + SURPLUS_BYTES)
        if what == "segment_grown":
            disk.damage(path, size + fault.random.randrange(SURPLUS_BYTES), b"x")
        disk.damages.append(Damage(what, path, must_be_noticed=what != "segment_padded"))
        fault.happened(replica.node_id, what, path)


def _floor(disk: TimedDisk) -> int:
    """Return the log position below which everything is synced, according to the node's durable `synced` file."""
    content = disk.pristine(MARK) or b""
    if len(content) < _FLOOR.size or content[:4] != b"KMQS":
        return 0
    return int(_FLOOR.unpack_from(content)[3])
