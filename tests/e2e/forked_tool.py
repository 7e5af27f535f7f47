"""`keelmq-deploy` forked from a process that has imported it, which is most of the work of a verb.

A test of verbs runs the tool a dozen times, and one that kills it at each step more often. A fork is a process of its
own with the arguments, the environment and the output of the command, and it can be killed like that. That the command
itself does the same is shown by the tests over ssh and those of bundles, which start it.
"""

import atexit
import contextlib
import functools
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Final, NoReturn

from deploy.broker_process import die_with_parent
from tests.e2e.fork_server import serve
from tests.requirements import REPOSITORY

TOOL: Final = "deploy.rollout.__main__"
MODULES: Final = (TOOL, "deploy.rollout.render_verb", "deploy.rollout.ways_back")
KILLED: Final = -signal.SIGKILL
_MADE: Final[list[subprocess.Popen[bytes]]] = []
"""Templates, which nobody waits for."""


class ForkedTool:
    """One run of the tool, with the calls of `subprocess.Popen` that tests need; `errors` is where its standard error
    goes.
    """

    def __init__(self, arguments: Sequence[str], errors: int | None) -> None:
        reading, writing = os.pipe()
        self.stdout: IO[str] = open(reading)  # noqa: SIM115 (closed by `wait`)
        self.returncode: int | None = None
        self._template = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._template.connect(tool_template())
        request = {"arguments": list(arguments), "environment": dict(os.environ)}
        own = writing if errors == subprocess.STDOUT else 2 if errors is None else errors
        socket.send_fds(self._template, [json.dumps(request).encode()], [writing, own])
        os.close(writing)
        self._process = os.pidfd_open(int(self._template.recv(16)))

    def __enter__(self) -> "ForkedTool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.kill()
        self.wait()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        if self.returncode is None:
            self.returncode = int(self._template.recv(16) or KILLED)
            self._template.close()
            self.stdout.close()
            os.close(self._process)
        return self.returncode


@functools.cache
def tool_template() -> str:
    """Return the address of a process that forks the tool. It ends with the thread that makes it: the main thread
    calls this first.
    """
    directory = tempfile.mkdtemp(prefix="keelmq-deploy-")
    made = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.forked_tool", f"{directory}/template"],
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        preexec_fn=functools.partial(die_with_parent, os.getpid()),
    )
    atexit.register(shutil.rmtree, directory)
    assert made.stdout is not None
    with made.stdout:
        assert made.stdout.readline() == b"serves\n"
    _MADE.append(made)
    return f"{directory}/template"


def become_tool(
    connection: socket.socket, files: Sequence[int], *, arguments: list[str], environment: dict[str, str]
) -> NoReturn:
    """Go on in the place of the tool. The connection tells its process, and at its end the exit code."""
    connection.send(str(os.getpid()).encode())
    for number, file in enumerate(files, 1):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["keelmq-deploy", *arguments]
    try:
        code = int(importlib.import_module(TOOL).main())
    except SystemExit as end:  # of the parser of the arguments
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send(str(code).encode())
    os._exit(code)  # to take the interpreter down costs more than most verbs


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1], MODULES, become_tool))
