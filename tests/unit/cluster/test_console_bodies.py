"""The indented form of a body on the console: JSON with other blanks, and of a size that can be shown."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.requirements import NODE, REPOSITORY, path_of

PAGE: Final = REPOSITORY / "cluster" / "console" / "page"
LOOK: Final = """
import { readFileSync } from "node:fs";
import { indented } from "./bodies.js";
console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(indented)));
"""
KIB: Final = 1 << 10


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the scripts to where Node takes them for modules, as a browser does."""
    NODE.require()
    copy = tmp_path_factory.mktemp("page")
    for script in ("bodies.js", "dom.js"):
        shutil.copy(PAGE / script, copy)
    (copy / "package.json").write_text('{"type": "module"}')
    (copy / "look.js").write_text(LOOK)
    return copy


def indented(page: Path, *bodies: str) -> Any:
    command = [path_of("node"), "look.js"]
    done = subprocess.run(command, input=json.dumps(bodies), capture_output=True, text=True, cwd=page, check=True)
    return json.loads(done.stdout)


def test_json_gets_a_line_for_each_value_and_keeps_its_numbers(page: Path) -> None:
    nested = "[" * 40 + "]" * 40
    (number, _), (deep, _), told = indented(page, '{"a":[1.0,9007199254740993], "b":{ }}', nested, "[1, 2")
    assert number == '{\n  "a": [\n    1.0,\n    9007199254740993\n  ],\n  "b": {}\n}'
    assert "".join(deep.split()) == nested
    assert told == [None, "It is no JSON, so it is shown as text."]


def test_json_that_would_be_too_large_is_shown_as_text(page: Path) -> None:
    brackets, values = "[" * 100 * KIB + "]" * 100 * KIB, f"[{'1,' * 200 * KIB}1]"
    (first, why), second, (word, no_json) = indented(page, brackets, values, "x" * 300 * KIB)
    assert (first, "more than 256 KiB" in why) == (None, True)
    assert second == [None, why]
    assert (word, no_json) == (None, "It is no JSON, so it is shown as text.")
