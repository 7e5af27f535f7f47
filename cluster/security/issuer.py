"""The issuer of people's tokens, as one node knows it: its present keys, and tokens whose key the node has not seen.

A token is judged at once by the keys that are here. A key that is not here makes the node fetch the keys, at most once
in a while however many tokens ask for it (cluster/health/issuer_guard.py); until then the answer is "not yet", and
after it "no".
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from cluster.process.key_set import KeySet

PERSON_PREFIX: Final = "oidc:"
"""Begins the names of all principals whom the issuer names. A local user has no colon in its name."""
GROUP_PREFIX: Final = "oidc-group:"
"""Begins the names of users whose rules hold for everybody in a group of the issuer."""
TOKEN_CHARACTERS_MAX: Final = 8_000
"""Maximum number of characters of an Authorization header with a token of the issuer. A header of 8,190 is not read."""
ASKED_KEYS_MAX: Final = 64
"""Maximum number of unknown keys that a node looks for at a time. Tokens with further ones are refused."""


class Person(NamedTuple):
    """The person whom a valid token names, without prefixes. `ends_ms` is when the token ends, in ms since 1970."""

    name: str
    groups: tuple[str, ...]
    ends_ms: int


class TokenRefused(Exception):
    """The token is not valid. The message may follow "the token is refused: " and holds nothing of the token."""


class KeyUnknown(TokenRefused):
    """The node does not have the key that the token names."""

    def __init__(self, kid: str) -> None:
        super().__init__(f"the issuer has no key {kid[:80]!r}")
        self.kid = kid


class KeyAwaited(Exception):
    """The node cannot judge the token until it has fetched the issuer's keys."""


class Verifier(Protocol):
    def verify(self, token: str, keys: "KeySet", now_ms: int) -> Person:
        """Return whom the token names. Raises TokenRefused; KeyUnknown when its key is not among `keys`."""
        ...


class Issuer:
    """Judges tokens by the present keys. Use on the event loop only."""

    def __init__(self, name: str, verifier: Verifier, keys: "KeySet | None" = None) -> None:
        """Create it, without keys if they have to be fetched first."""
        self.name = name
        self.version = 0
        """A number that changes with the keys: what was decided by former ones has to be decided anew."""
        self.on_wanted: Callable[[], None] = lambda: None
        """Called when a token names a key that is not here."""
        self._verifier = verifier
        self._keys = keys
        self._asked: set[str] = set()
        """Ids of unknown keys since the last look began."""
        self._looked_for: frozenset[str] = frozenset()
        """Those that were asked for before the last look began. It says nothing of later ones."""
        self._absent: frozenset[str] = frozenset()
        """Those among them that the look has not found."""

    @property
    def has_keys(self) -> bool:
        return self._keys is not None and len(self._keys) > 0

    def begin_look(self) -> None:
        """Note that the keys are about to be fetched or read; `use` or `settle` follows if, and only if, that
        succeeds.
        """
        self._looked_for = frozenset(self._asked)
        self._asked.clear()

    def use(self, keys: "KeySet") -> None:
        """Judge by these keys from now on: they are all that the issuer has. With none, every token is refused."""
        self._absent = frozenset(kid for kid in self._looked_for if not keys.knows(kid))
        if keys != self._keys:  # anybody can have the same keys fetched again, by a token with an unknown key
            self._keys = keys
            self.version += 1

    def settle(self) -> None:
        """Note that the present keys are all that the issuer has: tokens with other ones are refused."""
        self._absent = self._looked_for

    def forget(self) -> None:
        """Judge no token any more until there are keys again."""
        self._keys = None
        self.version += 1

    def identify(self, token: str, now_ms: int) -> Person:
        """Return whom the token names. Raises TokenRefused, or KeyAwaited while its key is looked for."""
        if self._keys is None:
            raise KeyAwaited(f"this node has not got the keys of {self.name} yet")
        try:
            return self._verifier.verify(token, self._keys, now_ms)
        except KeyUnknown as unknown:
            is_full = len(self._asked) >= ASKED_KEYS_MAX and unknown.kid not in self._asked
            if not is_full:
                self._asked.add(unknown.kid)
            self.on_wanted()
            if is_full or unknown.kid in self._absent:
                raise
            raise KeyAwaited(f"this node looks whether {unknown}") from None
