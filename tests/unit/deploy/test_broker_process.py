"""The launcher of broker processes keeps its promises about a process whose parent dies."""

import os
import signal
import subprocess
import sys

PROGRAM = """
import os, sys
from deploy.broker_process import die_with_parent
die_with_parent(int(sys.argv[1]))
print("runs on")
"""


def run(parent: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM, str(parent)], capture_output=True, text=True)


def test_a_process_whose_parent_was_gone_before_it_could_be_told_ends() -> None:
    done = run(parent=2**30)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


def test_a_process_whose_parent_lives_runs_on() -> None:
    assert run(os.getpid()).stdout == "runs on\n"
