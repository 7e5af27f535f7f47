"""A program that behaves as the command `keelmqd` and needs no time to import the broker.

It asks a process that has imported it, the template, to fork one that goes on in the program's place: with its
arguments, environment, directory, umask, standard files and session. That one's command line is what the command's
would be, since the deploying tool finds nodes by it. Tests of the tool's verbs start a hundred nodes and check as many
configurations; that the real command does the same is shown by the tests over ssh, and by those of bundles.
"""

import ctypes
import functools
import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy.broker_process import die_with_parent
from tests.e2e.fork_server import serve
from tests.requirements import REPOSITORY

PROGRAM: Final = """\
#!{python} -IS
import json, os, socket, sys
umask = os.umask(0)
request = {{"program": sys.argv[0], "arguments": sys.argv[1:], "environment": dict(os.environ)}}
request |= {{"directory": os.getcwd(), "umask": umask}}
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as template:
    template.connect({address!r})
    socket.send_fds(template, [json.dumps(request).encode()], [0, 1, 2])
    sys.exit(int(template.recv(16) or 1))
"""
MODULES: Final = ("cluster.main", "cluster.run_command", "cluster.serving")
COMMAND_LINE: Final = 4096
"""Room for the command line of a forked process, in bytes."""
_ARG_START, _ARG_END = 48, 49
"""Numbers of fields in /proc/PID/stat, from 1 on."""


@functools.cache
def _template(directory: Path) -> subprocess.Popen[bytes]:
    """Return a process that forks others, which ends with this one."""
    made = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.forked_command", str(directory / "template"), "-" * COMMAND_LINE],
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        preexec_fn=functools.partial(die_with_parent, os.getpid()),
    )
    assert made.stdout is not None
    assert made.stdout.readline() == b"serves\n"
    return made


def make_program(directory: Path) -> Path:
    """Return the path of the program in the directory, whose processes end with this one."""
    program = directory / "keelmqd"
    if not program.exists():
        program.write_text(PROGRAM.format(python=sys.executable, address=str(directory / "template")))
        program.chmod(0o755)
    _template(directory)
    return program


def become(
    connection: socket.socket,
    files: Sequence[int],
    *,
    program: str,
    arguments: list[str],
    environment: dict[str, str],
    directory: str,
    umask: int,
) -> int:
    """Go on in the place of the program, which ends as this does, or when this is a node that begins to run."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(directory)
    os.umask(umask)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [program, *arguments]
    take_command_line([sys.executable, *sys.argv])
    is_node = len(arguments) == 2 and arguments[0] == "--config"
    if is_node:
        connection.send(b"0")
        connection.close()
    try:
        code = int(importlib.import_module("cluster.main").main(arguments))
    except SystemExit as end:  # of the parser of the arguments
        code = int(end.code or 0)
    if not is_node:
        sys.stdout.flush()
        connection.send(str(code).encode())
        os._exit(code)  # to take the interpreter down costs ten times as much as the command
    return code


def take_command_line(parts: Sequence[str]) -> None:
    """Make /proc say that these are the arguments of this process. The first one is an absolute path; to fill the
    room, it gets more slashes.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = (int(fields[number - 3]) for number in (_ARG_START, _ARG_END))  # they go on with the third one
    content = b"".join(os.fsencode(part) + b"\0" for part in parts).rjust(end - begin, b"/")
    assert len(content) == end - begin, "the command line is too long"
    ctypes.memmove(begin, content, len(content))


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1], MODULES, become))
