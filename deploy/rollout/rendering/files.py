"""The files that a rendering writes: by name, each as a whole, and the directory with all of them."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

MARK: Final = ".keelmq-render"
"""File by which the tool knows a directory of its own, which it may replace."""
LINE_CHARACTERS: Final = 120
SECRET_MODE: Final = 0o600


class File(NamedTuple):
    content: bytes
    mode: int = 0o644


Files = Mapping[str, File]


class RenderError(Exception):
    """The files cannot be rendered or written; the text says why. Nothing was changed."""


class _Dumper(yaml.SafeDumper):
    """Writes every value in full, text of several lines as a block, and lists below their key."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def yaml_file(comment: str, *documents: Any) -> File:
    """Return the documents as YAML, in their own order of keys, below a comment."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    texts = (yaml.dump(each, Dumper=_Dumper, sort_keys=False, width=LINE_CHARACTERS) for each in documents)
    return File((head + "---\n" + "---\n".join(texts)).encode())


def write_directory(directory: Path, files: Files, owner: int | None) -> None:
    """Replace the directory by one with exactly these files; secrets are given to `owner`, a user id.

    The old one stays until the new one is whole. Raises RenderError for a directory that the tool did not make.
    """
    refuse_foreign(directory)
    new = directory.with_name(directory.name + ".new")
    old = directory.with_name(directory.name + ".old")
    for left in (new, old):
        refuse_foreign(left)
        shutil.rmtree(left, ignore_errors=True)
    for name, file in {MARK: File(b""), **files}.items():
        _write(new / name, file, owner)
    if directory.exists():
        directory.rename(old)
    new.rename(directory)
    shutil.rmtree(old, ignore_errors=True)


def refuse_foreign(directory: Path) -> None:
    """Raise RenderError if the path is there, and is neither empty nor a directory that the tool made."""
    if not directory.exists() or (directory / MARK).exists():
        return
    if not directory.is_dir() or any(directory.iterdir()):
        raise RenderError(f"{directory} is there and was not rendered by keelmq-deploy; choose another directory")


def _write(path: Path, file: File, owner: int | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.mode), "wb") as stream:
        stream.write(file.content)
        os.fchmod(stream.fileno(), file.mode)
        if owner is not None and file.mode == SECRET_MODE:
            os.fchown(stream.fileno(), owner, owner)
