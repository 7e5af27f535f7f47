"""Serves the files of the console at /console. They are part of the package, and nothing is fetched from elsewhere.

The files say nothing about the cluster, so everybody may have them. What the page shows and does goes through the API,
under the permissions of the token that its user gives it.
"""

from importlib import resources
from typing import Final, NamedTuple

from aiohttp import web

from cluster.http.routes import CONSOLE_PATH, OCTET_STREAM, Route
from cluster.problems import Problem
from cluster.security.access import PUBLIC

PAGE: Final = "index.html"
MEDIA_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
HEADERS: Final = {
    # No script and no style but these files: data that looks like a page stays text.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class _File(NamedTuple):
    body: bytes
    media_type: str


def _read_files() -> dict[str, _File]:
    page = resources.files("cluster.console") / "page"
    files = {}
    for entry in page.iterdir():
        media_type = MEDIA_TYPES.get(entry.name.rpartition(".")[2])
        if media_type is not None:
            files[entry.name] = _File(entry.read_bytes(), media_type)
    return files


class ConsoleApi:
    """Handles /console. The files are read once, when the node starts."""

    def __init__(self) -> None:
        self._files = _read_files()

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                CONSOLE_PATH,
                self.show_page,
                "Show the console, a page for people",
                {200: {"text/html": None}},
                access=PUBLIC,
            ),
            Route(
                "GET",
                f"{CONSOLE_PATH}/{{file}}",
                self.show_file,
                "Return a file of the console",
                {200: {OCTET_STREAM: None}},
                errors=("not_found",),
                access=PUBLIC,
            ),
        ]

    async def show_page(self, _: web.Request) -> web.Response:
        return self._answer(PAGE)

    async def show_file(self, request: web.Request) -> web.Response:
        return self._answer(request.match_info["file"])

    def _answer(self, name: str) -> web.Response:
        """Answer with a file of the page. Raises Problem not_found for any other name."""
        file = self._files.get(name)
        if file is None:
            raise Problem("not_found", f"the console has no such file; it begins at {CONSOLE_PATH}")
        return web.Response(body=file.body, headers={**HEADERS, "Content-Type": file.media_type})
