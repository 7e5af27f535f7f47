"""The output of a node in a file that is put aside when it is full: no disk is filled by lines."""

import contextlib
import os
from pathlib import Path
from typing import BinaryIO, Final

OUTPUT_BYTES_DEFAULT: Final = 64 << 20
OUTPUT_FILES_DEFAULT: Final = 5
LINE_BYTES_MAX: Final = 1 << 20
"""Length after which a line is cut to put the file aside."""


class RotatedFile:
    """Appends to `path` for its owner alone. From about `bytes_max` bytes on, at the end of a line, the file becomes
    `path.1`, that one `path.2`, and so on up to `files`. What cannot be written is dropped and counted, never waited
    for: a node goes on when the disk of its output is full.
    """

    def __init__(self, path: Path, bytes_max: int = OUTPUT_BYTES_DEFAULT, files: int = OUTPUT_FILES_DEFAULT) -> None:
        """Raise OSError when the file cannot be opened."""
        self._path, self._bytes_max, self._files = path, bytes_max, files
        self._stream = self._open()
        self._size = os.fstat(self._stream.fileno()).st_size
        self._is_at_line_end = True
        self.dropped_bytes = 0

    def write(self, content: bytes) -> None:
        if self._size >= self._bytes_max:
            end = 0 if self._is_at_line_end else content.find(b"\n") + 1
            if end or self._is_at_line_end or self._size >= self._bytes_max + LINE_BYTES_MAX:
                self._append(content[:end])
                self._put_aside()
                content = content[end:]
        self._append(content)

    def close(self) -> None:
        self._stream.close()

    def _append(self, content: bytes) -> None:
        if not content:
            return
        self._is_at_line_end = content.endswith(b"\n")
        try:
            if self.dropped_bytes:
                self._stream.write(b"[%d bytes of output are missing here]\n" % self.dropped_bytes)
                self.dropped_bytes = 0
            self._stream.write(content)
            self._size += len(content)
        except OSError:
            self.dropped_bytes += len(content)

    def _put_aside(self) -> None:
        with contextlib.suppress(OSError):  # it goes on in the old one
            for number in range(self._files, 1, -1):
                with contextlib.suppress(FileNotFoundError):
                    self._numbered(number - 1).rename(self._numbered(number))
            self._path.rename(self._numbered(1))
            new = self._open()
            self._stream.close()
            self._stream, self._size = new, 0

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _open(self) -> BinaryIO:
        return open(self._path, "ab", buffering=0, opener=lambda path, flags: os.open(path, flags, 0o600))
