"""The outcome of one seed. Everything in it is a function of the seed, so it can be compared between machines."""

from dataclasses import dataclass, field


@dataclass
class Outcome:
    seed: int
    nodes: int = 0
    steps: int = 0
    acknowledged: int = 0
    duplicates: int = 0
    """Sent again after an acknowledgement, and recognised."""
    refused: int = 0
    unknown: int = 0
    """Given up by a client without an answer."""
    terms: int = 0
    now_us: int = 0
    """Simulated time at the end."""
    trace: str = ""
    violation: str | None = None
    detail: str = ""
    faults: tuple[int, ...] = ()
    """The numbers of the planned faults that took effect."""
    met: dict[str, int] = field(default_factory=dict)
    """Counts of events, as `area: name`; coverage.py lists the expected ones."""

    @property
    def accuser(self) -> str | None:
        """Name of the checker that found the violation. A node that stops itself was caught by a guard of its own,
        which is named instead.
        """
        if self.violation != "node_stopped":
            return self.violation
        guard = self.detail.partition(": ")[2]
        return f"node_stopped ({guard.partition(':')[0] if ': ' in guard else guard})"
