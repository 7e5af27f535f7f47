"""The code in documents: fenced blocks with their language, for tests that run what a reader would copy."""

import re
from pathlib import Path
from typing import Final, NamedTuple

BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block. `before` is the prose between the block before it and this one."""

    language: str
    text: str
    before: str


def blocks_of(document: Path) -> list[Block]:
    """Return the fenced blocks of a Markdown file in their order."""
    text, end = document.read_text(), 0
    found: list[Block] = []
    for match in BLOCK.finditer(text):
        found.append(Block(match[1], match[2], text[end : match.start()]))
        end = match.end()
    return found
