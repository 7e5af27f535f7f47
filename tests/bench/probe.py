"""Asks a node for /healthz repeatedly, in a process of its own: `python -m tests.bench.probe URL`.

The probe ends with its standard input, and prints the time of the longest answer in milliseconds, which is at least
the longest step of the node's event loop, and little more.
"""

import http.client
import sys
import threading
import time
from typing import Final
from urllib.parse import urlsplit

PAUSE_S: Final = 0.002


def main() -> None:
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    address = urlsplit(sys.argv[1]).netloc
    connection = http.client.HTTPConnection(address, timeout=60)
    longest_s = 0.0
    while not ended.is_set():
        begun_s = time.perf_counter()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        longest_s = max(longest_s, time.perf_counter() - begun_s)
        time.sleep(PAUSE_S)
    print(longest_s * 1_000)


if __name__ == "__main__":
    main()
