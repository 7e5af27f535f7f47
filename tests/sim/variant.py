"""Variants of a simulated cluster: made of the real parts, or with deliberately broken ones in place of some of
them.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

from .plan import NO_EDITS, Edits


class Swap(NamedTuple):
    """A replacement: `part` stands in for `owner.name`, which is a class where it is constructed, a function or a
    method.
    """

    owner: Any
    name: str
    part: Any


@dataclass(frozen=True)
class Variant:
    """A way to break nodes. `breaks` describes the defect; `invariant` is the promise that it breaks
    (docs/invariants.md; 0: only progress).

    `rare` says that few seeds bring together all that is needed to see the damage, and `first_seed` from which on they
    were found to. `edits` are those of the plans in which they are looked for.
    """

    name: str = "safe"
    breaks: str = ""
    invariant: int = 0
    swaps: tuple[Swap, ...] = ()
    rare: bool = False
    first_seed: int = 0
    edits: Edits = NO_EDITS

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Break all nodes that run inside the context in this way, and undo the change after it.

        Raises AttributeError when a part to be swapped does not exist (any more).
        """
        with ExitStack() as stack:
            for owner, name, part in self.swaps:
                stack.enter_context(mock.patch.object(owner, name, part))
            yield


SAFE = Variant()


def mutant(
    invariant: int, *swaps: Swap, rare: bool = False, first_seed: int = 0, only_kinds: tuple[str, ...] | None = None
) -> Variant:
    """Return a broken variant, named after its first part and described by that part's docstring. All faults of the
    plans in which its damage is looked for are of `only_kinds`, if they are given.
    """
    part = swaps[0].part
    part = getattr(part, "fget", part)  # the function of a property
    name = re.sub(r"(?<!^)(?=[A-Z])|_", "-", part.__name__).lower()
    breaks, edits = " ".join(part.__doc__.split()), Edits(only_kinds=only_kinds)
    return Variant(name, breaks, invariant, swaps, rare, first_seed, edits)
