"""A process that has imported what others would need time for, and forks one of them for each request."""

import gc
import importlib
import json
import os
import signal
import socket
from collections.abc import Callable, Iterable
from typing import Final

from deploy.broker_process import die_with_parent

REQUEST_BYTES_MAX: Final = 1 << 20
FILES_MAX: Final = 3


def serve(address: str, modules: Iterable[str], become: Callable[..., int]) -> int:
    """Import the modules and serve at a Unix socket. Each fork goes on in `become`, which is given the connection, the
    files that were sent, and the fields of the request; its exit code is returned in the fork.
    """
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # a collection in a fork would write to each page that it shares with this process
    own = os.getpid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets those that have ended
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(16)
        print("serves", flush=True)
        while True:
            connection, _ = listener.accept()
            content, files, _, _ = socket.recv_fds(connection, REQUEST_BYTES_MAX, FILES_MAX)
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                die_with_parent(own)
                return become(connection, files, **json.loads(content))
            connection.close()
            for file in files:
                os.close(file)
