"""A write that RocksDB would hold comes back: also the one with which RocksDB finds out that the disk is behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.requirements import REPOSITORY

PROGRAM = """
import os, sys
from rocksdict import Rdict
from store.index import index
from store.index.rocksdb_options import rocksdb_options

options = rocksdb_options()
options.set_ratelimiter(4096, 1_000_000, 10)  # a disk that hangs
made = index.Index(Rdict(sys.argv[1], options))
size = int(sys.argv[2])
written = 0
made.put(b"", b"")
while made.try_commit() and written < 1 << 27:
    made.put(b"%016d" % written, os.urandom(size))
    written += size
print(written, made.figures().is_write_stopped, flush=True)
os._exit(0)  # closing would wait for the disk
"""
"""Writes until the index takes no more. A write that waited would never return."""


@pytest.mark.parametrize("size", [64 << 10, 1 << 20, 5 << 20])
def test_the_write_that_would_hold_its_caller_comes_back(tmp_path: Path, size: int) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "index"), str(size)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    written, is_stopped = done.stdout.split()
    assert (is_stopped, 8 << 20 < int(written) < 40 << 20) == ("True", True)
