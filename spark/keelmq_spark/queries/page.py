"""Pages of HTML around a picture: a search, folding, links to other pages, and the rows of the answer.

A page is one file. Its policy allows its own style and script alone, by their hashes: no other script runs in it,
whatever the names of topics and messages are.
"""

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Final, NamedTuple

from keelmq_spark.queries.drawing import shown

_STYLE: Final = (
    "body{font:13px DejaVu Sans,Arial,sans-serif;margin:16px;color:#0f172a}table{border-collapse:collapse;"
    "margin-top:16px}td,th{border:1px solid #cbd5e1;padding:4px 8px;text-align:left}th{background:#f1f5f9}"
    "nav a,a{color:#1d4ed8}#tools{margin:8px 0;position:sticky;left:0;top:0;background:#fff;padding:6px 0}"
    "#search{width:24em;padding:4px 8px;font:inherit}button{font:inherit;padding:3px 10px}#found{margin:0 12px}"
    "svg [role=button]{cursor:pointer}.dim{opacity:.12}.gone{display:none}svg a text{text-decoration:underline}"
    ".fold rect{fill:#fff;stroke:#64748b}.fold text{fill:#334155}.picture{overflow-x:auto}"
)
_SCRIPT: Final = files("keelmq_spark.queries").joinpath("page.js").read_text("utf-8")


class Cell(NamedTuple):
    """A cell of a table that leads to another page."""

    text: str
    href: str


def _hash(content: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() + "'"


_POLICY: Final = (
    f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)}; base-uri 'none'; form-action 'none'"
)


def page(
    svg: str, heading: str, table: Sequence[Sequence[object]], links: Sequence[Cell] = (), caption: str = ""
) -> str:
    """Return a page with the picture and a table below it; the first row of `table` is its header."""
    head, *rows = table or [[]]
    header = "".join(f"<th>{shown(str(cell))}</th>" for cell in head)
    body = "\n".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    navigation = "".join(f"{_cell(link)} " for link in links)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{shown(heading)}</title><style>{_STYLE}</style></head><body>"
        + (f"<nav>{navigation}</nav>" if links else "")
        + '<div id="tools" hidden><input id="search" type="search" placeholder="search" aria-label="search names">'
        '<span id="found" role="status"></span><button type="button" data-all="fold" hidden>fold all</button> '
        '<button type="button" data-all="unfold" hidden>unfold all</button></div>'
        f'<div class="picture">{svg}</div>\n<table>'
        + (f"<caption>{shown(caption)}</caption>" if caption else "")
        + f"<thead><tr>{header}</tr></thead><tbody>\n{body}\n</tbody></table><script>{_SCRIPT}</script></body></html>\n"
    )


def _cell(cell: object) -> str:
    if isinstance(cell, Cell):
        return f'<a href="{escape(cell.href)}">{shown(cell.text)}</a>'
    return shown("" if cell is None else str(cell))
