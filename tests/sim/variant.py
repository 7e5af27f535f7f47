"""What a simulated cluster is made of: the real parts, or deliberately broken ones in place of some of them."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock


class Swap(NamedTuple):
    """`owner.name`, a class where it is constructed, a function or a method, is `part` instead."""

    owner: Any
    name: str
    part: Any


@dataclass(frozen=True)
class Variant:
    """`breaks` says in words what is broken, `invariant` which promise that is (docs/invariants.md; 0: only progress).

    `rare`: what it takes to see the damage comes together in few seeds.
    """

    name: str = "safe"
    breaks: str = ""
    invariant: int = 0
    swaps: tuple[Swap, ...] = ()
    rare: bool = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """All nodes that run inside are broken in this way; afterwards nothing is left of it.

        AttributeError when a part that is to be swapped does not exist (any more).
        """
        with ExitStack() as stack:
            for owner, name, part in self.swaps:
                stack.enter_context(mock.patch.object(owner, name, part))
            yield


SAFE = Variant()


def mutant(invariant: int, *swaps: Swap, rare: bool = False) -> Variant:
    """A broken variant, named after its first part and described by that part's docstring."""
    part = swaps[0].part
    name = re.sub(r"(?<!^)(?=[A-Z])|_", "-", part.__name__).lower()
    return Variant(name, " ".join(part.__doc__.split()), invariant, swaps, rare)
