"""State machine safety: no two nodes apply different entries at one index, and each applies them in order."""

from .violation import Violation


class StateMachineSafety:
    def __init__(self) -> None:
        self._applied: dict[int, tuple[int, bytes]] = {}

    def on_apply(self, node_id: int, index: int, term: int, payload: bytes) -> None:
        first = self._applied.setdefault(index, (term, payload))
        if first != (term, payload):
            raise Violation(
                "state_machine_safety",
                f"node {node_id} applies {payload[:40]!r} of term {term} at index {index}, "
                f"another applied {first[1][:40]!r} of term {first[0]}",
            )

    @property
    def entries(self) -> dict[int, tuple[int, bytes]]:
        """The entries applied on any node: index -> (term, payload)."""
        return self._applied
