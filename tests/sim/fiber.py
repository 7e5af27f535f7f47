"""Threads that take turns: a fiber runs only while its owner waits for it, so a run stays deterministic.

Made of greenlets: switching costs a microsecond, where handing over between two real threads costs a hundred.
"""

from collections.abc import Callable

from greenlet import greenlet  # type: ignore[import-untyped]


class FiberKilled(BaseException):
    """Raised out of `Fiber.pause` when the process that the fiber belongs to has died."""


class Fiber:
    """A call with a stack of its own. It hands control back at every `Fiber.pause()`.

    Exceptions of the call end the fiber and are raised by `resume` in the owner.
    """

    current: "Fiber | None" = None

    def __init__(self, call: Callable[[], object], *, of_kernel: bool = False) -> None:
        """`of_kernel` says that the call belongs to the kernel: it goes on while its process stands still."""
        self._call = call
        self.of_kernel = of_kernel
        self._greenlet = greenlet(self._run)
        self._killed = False
        self.finished = False

    def resume(self) -> None:
        """Run until the next pause or the end."""
        if self.finished:
            return
        assert Fiber.current is None, "a fiber cannot resume another"
        Fiber.current = self
        self._greenlet.parent = greenlet.getcurrent()
        try:
            self._greenlet.switch()
        finally:
            Fiber.current = None

    @classmethod
    def pause(cls) -> None:
        """Called inside a fiber: let the owner go on until it resumes us."""
        fiber = cls.current
        assert fiber is not None, "only a fiber can pause"
        owner = fiber._greenlet.parent
        assert owner is not None
        owner.switch()
        if fiber._killed:
            raise FiberKilled

    def kill(self) -> None:
        """Unwind the call from where it pauses; nothing it does on the way out may reach the world. A call that catches
        this, as the thread that syncs catches all that a sync raises, is unwound from its next pause.
        """
        self._killed = True
        while self._greenlet:  # has begun and not ended
            self.resume()

    def _run(self) -> None:
        try:
            self._call()
        except FiberKilled:
            pass
        finally:
            self.finished = True
