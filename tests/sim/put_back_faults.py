"""Disks that are put back to an earlier state while their nodes are down, as by a snapshot of a virtual machine."""

import struct
from collections.abc import Callable, Mapping
from functools import partial

from .fault import Action, Fault, minority_impaired
from .replica import DATA, Image, Replica
from .world import World

AGE_US_MIN, AGE_US_MAX = 200_000, 4_000_000
POLL_US = 50_000
POLLS_MAX = 80
_COMMITS = struct.Struct("<4sB3xQQQQ")  # docs/log-format.md; deliberately shares no code with store/


class PutBackFaults:
    """Put older contents of a disk back. No node can notice a loss that nobody knows of, so this waits until all other
    disks know of the lost records: a committed entry at or behind the disk's last one, and its term. Until then the
    node stays down. If that takes too long, the node starts with the disk it has.
    """

    def __init__(self, world: World, replicas: Mapping[int, Replica], may_happen: Callable[[], bool]) -> None:
        self._world, self._replicas, self._may_happen = world, replicas, may_happen
        self._held: set[int] = set()
        self.table: dict[str, Action] = {"put_back": self._take_image}

    def holds(self, node_id: int) -> bool:
        """Return whether the node has to stay down."""
        return node_id in self._held

    def _take_image(self, fault: Fault) -> None:
        alive = [replica for replica in self._replicas.values() if replica.alive]
        replica = fault.random.choice(alive) if alive else None
        image = replica.take_image() if replica is not None else None
        if replica is None or image is None:
            return
        age_us = fault.random.randint(AGE_US_MIN, AGE_US_MAX)
        then = replica.wipes, replica.durable.last
        self._world.after(age_us, partial(self._strike, fault, replica, image, then, age_us))

    def _strike(
        self, fault: Fault, replica: Replica, image: Image, then: tuple[int, tuple[int, int]], age_us: int
    ) -> None:
        """Crash the node to put `image` back. `then` names the disk of the image by its number of wipes, and the last
        record on it.
        """
        wipes, last = then
        if replica.wipes != wipes or replica.durable.last <= last or replica.disk.is_damaged:
            return  # another disk, or nothing would be lost
        if not (self._may_happen() and replica.alive and replica.node_id not in self._held):
            return
        if not minority_impaired(self._replicas, replica.node_id) or replica.throws_its_log_away:
            return
        self._held.add(replica.node_id)
        replica.crash(power_loss=False)
        self._world.after(POLL_US, partial(self._poll, fault, replica, image, age_us, 1))

    def _poll(self, fault: Fault, replica: Replica, image: Image, age_us: int, polls: int) -> None:
        if not self._may_happen() or polls > POLLS_MAX or replica.disk.is_damaged:
            self._held.discard(replica.node_id)
        elif replica.buried and minority_impaired(self._replicas, replica.node_id) and self._all_know(replica):
            self._held.discard(replica.node_id)
            fault.happened(replica.node_id, polls * POLL_US // 1000, age_us // 1000)
            replica.put_back(image)
        else:
            self._world.after(POLL_US, partial(self._poll, fault, replica, image, age_us, polls + 1))

    def _all_know(self, lost: Replica) -> bool:
        term, _ = lost.durable.hard_state
        others = [
            replica for replica in self._replicas.values() if replica is not lost and replica.durable.last_index > 1
        ]
        return bool(others) and all(
            replica.durable.hard_state[0] >= term and _known_committed(replica) >= lost.durable.last
            for replica in others
        )


def _known_committed(replica: Replica) -> tuple[int, int]:
    """Return term and index of the last entry that the disk would show to be committed after a power loss."""
    content = replica.disk.durable_bytes(f"{DATA}/watermarks")
    if content is None or len(content) < _COMMITS.size:
        return 0, 0
    _, _, _, term, index, _ = _COMMITS.unpack_from(content)
    return term, index
