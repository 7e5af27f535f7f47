"""The scripts of the console are typed by their comments: a compiler that only looks finds nothing wrong."""

import subprocess
from pathlib import Path
from typing import Final

from tests.requirements import REPOSITORY, TYPESCRIPT, path_of

PAGE: Final = REPOSITORY / "cluster" / "console" / "page"
LOOK: Final = (
    *("--noEmit", "--allowJs", "--checkJs", "--strict", "--noImplicitAny", "false"),
    *("--target", "esnext", "--lib", "esnext,dom,dom.iterable", "--module", "es2022", "--moduleResolution", "node"),
)


WRONG: Final = """/** @param {number} ms */
const wait = (ms) => ms;
wait("soon");
"""


def test_no_script_uses_what_is_not_there(tmp_path: Path) -> None:
    TYPESCRIPT.require()
    (tmp_path / "wrong.js").write_text(WRONG)
    files = [*sorted(PAGE.glob("*.js")), tmp_path / "wrong.js"]
    done = subprocess.run([path_of("tsc"), *LOOK, *files], capture_output=True, text=True, cwd=PAGE)
    (complaint,) = (done.stdout + done.stderr).splitlines()
    assert "wrong.js(3,6): error TS2345" in complaint, "it is the one that is there on purpose"
