"""One fault of a plan while it happens, and the functions that all faults share."""

from collections.abc import Callable, Mapping

from .plan import PlannedFault
from .replica import Replica
from .world import World

PAUSE_US_MIN, PAUSE_US_MAX = 50_000, 900_000
DOWN_US_MIN, DOWN_US_MAX = 20_000, 800_000

Action = Callable[["Fault"], None]


class Fault:
    """A fault, called at its moment. The action calls `happened` when the fault takes effect, then or later; otherwise
    it has none.
    """

    def __init__(
        self,
        planned: PlannedFault,
        world: World,
        on_happened: Callable[["Fault"], None],
        action: Action,
        may_happen: Callable[[], bool],
    ) -> None:
        self.random = world.random_of(f"fault {planned.number}")
        self.number, self.kind = planned.number, planned.kind
        self._world, self._on_happened, self._action, self._may_happen = world, on_happened, action, may_happen

    def __call__(self) -> None:
        if self._may_happen():
            self._action(self)

    def happened(self, *detail: object) -> None:
        """Report that the fault took effect. `detail` is for the story: story.py says what each kind reports."""
        self._on_happened(self)
        self._world.trace("fault", self.number, self.kind, *detail)

    def is_over(self) -> None:
        """Trace that a lasting fault has ended."""
        self._world.trace("over", self.number, self.kind)


def impaired(replicas: Mapping[int, Replica]) -> set[int]:
    """Return the nodes whose disks do not hold everything that they ever acknowledged."""
    return {
        node_id
        for node_id, replica in replicas.items()
        if not replica.durable.voter or replica.disk.is_damaged or replica.is_put_back
    }


def minority_impaired(replicas: Mapping[int, Replica], node_id: int) -> bool:
    """Return whether the impaired nodes would be a minority if `node_id` were among them."""
    return minority(replicas, impaired(replicas) | {node_id})


def minority(replicas: Mapping[int, Replica], nodes: set[int]) -> bool:
    """Return whether the nodes are a minority, by any log and whatever operators have asked for."""
    logs = [replica.durable.term_at for replica in replicas.values()]
    logs += [replica.term_at for replica in replicas.values() if replica.alive and replica.has_recovered]
    return next(iter(replicas.values())).observer.membership.bears(nodes, logs)
