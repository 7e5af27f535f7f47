"""Kills sessions when the process that named them is gone: lines `+SESSION` and `-SESSION` on standard input.

A signal to the benchmark's terminal does not reach the guard, which has a session of its own; the end of its standard
input does, also after a SIGKILL.
"""

import signal
import sys

from tests.bench.peers.processes import kill_sessions


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sessions: set[int] = set()
    for line in sys.stdin:
        session = int(line[1:])
        if line.startswith("+"):
            sessions.add(session)
        else:
            sessions.discard(session)
    kill_sessions(sessions)


if __name__ == "__main__":
    main()
