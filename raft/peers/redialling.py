"""Pauses between two attempts to reach a peer, which end when the peer is heard from."""

import asyncio


class Pauses:
    """Owns the pauses under way, one for each peer. Use it only on the event loop.

    A peer that was just started dials at once, and is reached then, too. At most every second pause of a peer ends
    early: two nodes whose connections end at once would otherwise dial each other without any pause.
    """

    def __init__(self) -> None:
        self._ends: dict[int, asyncio.Event] = {}
        self._shortened: set[int] = set()

    async def last(self, peer: int, length_s: float) -> None:
        """Wait for `length_s`, or until `end` is called for the peer."""
        end = self._ends[peer] = asyncio.Event()
        try:
            async with asyncio.timeout(length_s):
                await end.wait()
        except TimeoutError:
            self._shortened.discard(peer)
        finally:
            if self._ends.get(peer) is end:  # otherwise another dialler has taken over
                del self._ends[peer]

    def end(self, peer: int) -> None:
        """End the pause of the peer, unless the one before was ended, too."""
        if peer in self._ends and peer not in self._shortened:
            self._shortened.add(peer)
            self._ends[peer].set()
