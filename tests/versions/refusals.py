"""Texts of the refusals that apply can make, from the sources of the store.

The text of a refusal is part of the state hash (`store/state/machine.py`), which nodes of different versions compare.
So the golden file only grows: `python -m tests.versions.refusals --write` adds the texts of new refusals.
"""

import argparse
import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

STORE: Final = Path(__file__).parents[2] / "store"
GOLDEN: Final = Path(__file__).parent / "golden" / "refusals.txt"
ADVICE: Final = (
    "The text of a refusal is part of the state hash, so a node of another version would seem to differ. Keep it as it "
    "is; cluster/problems.py adds the next step to answers."
)


WRITE: Final = "python -m tests.versions.refusals --write"


def texts() -> Counter[str]:
    """Return the text of each refusal in the store, as `CODE: text` with `{}` for what is filled in, and the number of
    places that have it.
    """
    return Counter(text for path in sorted(STORE.rglob("*.py")) for text in _of_source(path.read_text()))


def golden() -> Counter[str]:
    return Counter(GOLDEN.read_text().splitlines())


def _of_source(source: str) -> Iterator[str]:
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        assigned: dict[str, ast.expr] = {}
        for node in sorted(ast.walk(function), key=lambda node: getattr(node, "lineno", 0)):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    assigned[name] = value
                case ast.Call(func=ast.Name(id="Refused"), args=[code, ast.Name(id=name), *_]):
                    yield f"{ast.unparse(code)}: {_text(assigned[name])}"
                case ast.Call(func=ast.Name(id="Refused"), args=[code, text, *_]):
                    yield f"{ast.unparse(code)}: {_text(text)}"


def _text(value: ast.expr) -> str:
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) for part in parts)
        case ast.FormattedValue(conversion=114):  # !r
            return "{!r}"
    return "{}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Add the texts of new refusals to the golden file.")
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args()
    GOLDEN.write_text("".join(f"{text}\n" for text in sorted((golden() | texts()).elements())))
