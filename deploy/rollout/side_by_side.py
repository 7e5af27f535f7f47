"""Work on several hosts at the same time, of which each ends for itself."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Final, TypeVar

H = TypeVar("H")
T = TypeVar("T")

AT_ONCE: Final = 5
"""Number of hosts that are worked on at the same time unless told otherwise: this machine sends each the bundle."""


class Failed(Exception):
    """The verb could not be finished; the text names what failed and the next step."""


def side_by_side(
    act: Callable[[H], T], hosts: Sequence[H], at_once: int = AT_ONCE, ended: Callable[[], None] = lambda: None
) -> list[T]:
    """Return what `act` returns for each of the hosts, at most `at_once` of which are worked on at a time. `ended` is
    called after each that ended well.

    A host whose call raises does not stop the calls of the others. Then its error is raised, or Failed with the texts
    of several.
    """
    errors: dict[int, Exception] = {}
    with ThreadPoolExecutor(max(1, min(at_once, len(hosts))), thread_name_prefix="host") as pool:
        futures = [pool.submit(act, host) for host in hosts]
        try:
            for future in as_completed(futures):
                if (error := future.exception()) is None:
                    ended()
                elif isinstance(error, Exception):
                    errors[futures.index(future)] = error
                else:
                    raise error
        except BaseException:  # the operator's interruption: what has not begun does not begin
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if len(errors) == 1:
        raise next(iter(errors.values()))
    if errors:
        raise Failed(
            "\n".join(str(error) or repr(error) for _, error in sorted(errors.items(), key=lambda each: each[0]))
        )
    return [future.result() for future in futures]
