"""Runs the real `keelmq doctor` against a cluster, again and again while a fault stands."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.patience import PATIENCE_S
from tests.requirements import REPOSITORY

WAITING: Final = "3s"
"""Time that messages and transactions may wait, as in the shortened rules."""
STIR_S: Final = 0.2
"""Time between two rounds of what goes on while the doctor looks."""
COMMAND: Final = (sys.executable, "-c", "from keelmq.cli.entry import main; main()")


class Doctor:
    """Asks the nodes at `servers`, with the token and the authorities of `environment`."""

    def __init__(self, servers: str, environment: Mapping[str, str] | None = None) -> None:
        self._environment = {**os.environ, **(environment or {}), "KEELMQ_SERVERS": servers}

    def codes(self, look_s: float, stir: Callable[[], None] | None = None) -> set[str]:
        """Return the codes of what the command finds, which looks twice with that time between. `stir` is called again
        and again meanwhile.
        """
        command = [*COMMAND, "doctor", "--json", "--seconds", str(look_s), "--waiting", WAITING]
        with subprocess.Popen(
            command, cwd=REPOSITORY, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                if stir is not None:
                    while process.poll() is None:
                        stir()
                        threading.Event().wait(STIR_S)
                output, errors = process.communicate(timeout=PATIENCE_S)
            finally:
                process.kill()
        try:
            document: dict[str, Any] = json.loads(output)
        except ValueError:
            raise RuntimeError(f"keelmq doctor ended with {process.returncode}: {output}{errors}") from None
        return {finding["code"] for finding in document["findings"]}

    def until(
        self, wanted: Callable[[set[str]], bool], look_s: float = 0.0, stir: Callable[[], None] | None = None
    ) -> set[str]:
        """Examine until what is found is wanted, or patience ends. Return what was found last."""
        ends_s = time.monotonic() + PATIENCE_S
        while True:
            found = self.codes(look_s, stir)
            if wanted(found) or time.monotonic() > ends_s:
                return found
