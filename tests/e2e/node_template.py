"""Starts nodes from processes that have imported the broker already.

Importing it takes seven tenths of a second of processor time, more than most tests need for the node itself. A template
imports it once and forks: a node is a process of its own, with the arguments, environment and output of a `keelmqd`
that was started by its command. End-to-end tests and those of mixed versions turn this on; whatever else runs nodes,
such as demos, chaos and power losses, starts them by the command.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from deploy.broker_process import die_with_parent

ROOT: Final = Path(__file__).parents[2]
BROKER: Final = "cluster.main"
MODULES: Final = (BROKER, "tests.versions.next_node")
"""Modules whose nodes can be forked. The others have a function `prepare`, for before the broker is imported."""
FIXED_VARIABLES: Final = ("PYTHON", "LD_", "NEXT_VERSION_")
"""Beginnings of the variables that take effect when the interpreter starts, or while it imports."""
TEMPLATES: Final = 3
"""Nodes of a cluster come from different templates: each has a hash seed of its own, as processes that were started by
the command have, so that replicas that went by the order of a set would differ."""


class ForkedProcess:
    """One process that a template has forked, with the calls of `subprocess.Popen` that a test needs."""

    def __init__(self, template: "NodeTemplate", pid: int) -> None:
        self._template = template
        self.pid = pid
        self._end = os.pidfd_open(pid)  # readable as soon as the process has ended
        self._asking = threading.Lock()
        self.returncode: int | None = None

    def __del__(self) -> None:
        os.close(self._end)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        waiter = select.poll()
        waiter.register(self._end, select.POLLIN)
        if not waiter.poll(None if timeout is None else 1000 * timeout):
            raise subprocess.TimeoutExpired(["keelmqd"], timeout or 0)
        with self._asking:
            if self.returncode is None:
                self.returncode = self._template.ask(ended=self.pid)
            return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._end, number)


class NodeTemplate:
    """Owns one process that forks nodes. They end with it, and it ends with the thread that made it. Any thread may
    call it.
    """

    def __init__(self, module: str) -> None:
        self._asking = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.node_template", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            preexec_fn=functools.partial(die_with_parent, os.getpid()),
        )
        atexit.register(self.close)

    def fork(self, arguments: Sequence[str], environment: Mapping[str, str], log: BinaryIO) -> ForkedProcess:
        """Run `keelmqd` with these arguments in a process with this environment, whose output goes to that file."""
        pid = self.ask(arguments=list(arguments), environment=dict(environment), log=log.name)
        return ForkedProcess(self, pid)

    def ask(self, **request: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._asking:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def can_be_forked(environment: Mapping[str, str]) -> bool:
    """Return whether a template is what a new process with that environment would be."""
    names = {name for name in (*environment, *os.environ) if name.startswith(FIXED_VARIABLES)}
    return all(environment.get(name) == os.environ.get(name) for name in names)


def template_of(node_id: int, module: str = BROKER) -> NodeTemplate:
    return _template(node_id % TEMPLATES, module)


@functools.cache
def _template(number: int, module: str) -> NodeTemplate:
    return NodeTemplate(module)


def make_templates(*modules: str) -> None:
    """Make those of all nodes. They end with the thread that made them, so the main thread calls this."""
    for module in modules:
        for node_id in range(TEMPLATES):
            template_of(node_id, module)


def become_node(template: int, arguments: Sequence[str], environment: Mapping[str, str], log: str) -> int:
    """Go on as the node, in the process that `template` has forked; returns its exit code."""
    die_with_parent(template)
    for number, (path, flags) in enumerate([(os.devnull, os.O_RDONLY), *[(log, os.O_WRONLY | os.O_APPEND)] * 2]):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["keelmqd", *arguments]
    return int(importlib.import_module(BROKER).main(arguments))


def serve(module: str) -> int:
    """Fork a node, or tell the exit code of one that has ended, for each line of standard input."""
    if module != BROKER:
        importlib.import_module(module).prepare()
    for name in (BROKER, "cluster.run_command", "cluster.serving"):
        importlib.import_module(name)
    gc.freeze()  # a collection in a node would write to each page that it shares with this process
    own = os.getpid()
    for line in sys.stdin:
        request = json.loads(line)
        if "ended" in request:
            _, status = os.waitpid(request["ended"], 0)
            answer = os.waitstatus_to_exitcode(status)
        elif (answer := os.fork()) == 0:
            return become_node(own, **request)
        print(answer, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1]))
