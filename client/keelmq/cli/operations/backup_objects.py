"""Backups as objects of an S3-compatible store.

An object appears under its name when all of its parts are there and the upload is completed; before, no list shows it.
An upload that fails or is interrupted is aborted, so that the store does not keep its parts.
"""

import base64
import contextlib
import hashlib
import io
import re
import secrets
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, BinaryIO, Final, Self, cast

from keelmq.cli.operations.backup_files import SUFFIX, Found, Opened, described
from keelmq.cli.operations.object_store import CALLS_MAX, Location, ObjectStore
from keelmq.cli.output import say
from keelmq.errors import Conflict, InvalidRequest, KeelMQError, LimitExceeded

PART_BYTES_DEFAULT: Final = 16 << 20
PART_BYTES_MIN: Final = 5 << 20
"""Stores refuse smaller parts, except for the last one."""
PART_BYTES_MAX: Final = 1 << 30
PARTS_MAX: Final = 10_000
"""Number of parts that stores take for one object."""
RANGE_BYTES: Final = 8 << 20
"""Bytes that one request reads of an object that is read as a whole."""
SUMMARY_BYTES: Final = 16 << 10
"""Bytes that are read of an object for its first frame."""
LEFT_AFTER: Final = timedelta(days=1)
"""Age of an upload of which is taken that its writer has gone."""
MARK: Final = "keelmq-upload"
"""Field of an object's metadata that tells its upload from others."""


class ObjectPlace:
    """An object, or a folder of objects, as a place of backups. What does not end with `.backup` is a folder.

    All methods raise KeelMQError, as ObjectStore does.
    """

    def __init__(self, place: Location, store: ObjectStore, part_bytes: int = PART_BYTES_DEFAULT) -> None:
        is_folder = not place.key.endswith(SUFFIX)
        if is_folder and place.key and not place.key.endswith("/"):
            place = place._replace(key=f"{place.key}/")
        self.name = place.url
        self._place, self._is_folder = place, is_folder
        self._store, self._part_bytes = store, part_bytes

    def prepare(self) -> None:
        """Raise Conflict if the object exists. Credentials that may only write are no hindrance; then it is found
        out at the end.
        """
        if self._is_folder:
            return
        try:
            self._store.call("head_object", self._place, Key=self._place.key)
        except KeelMQError as exc:
            if exc.code in ("store_not_found", "store_denied"):
                return
            raise
        raise _exists(self._place)

    def remove_left(self) -> None:
        """Abort uploads of backups to this place whose writers have gone, as far as the store allows that."""
        with contextlib.suppress(KeelMQError):
            left = self._store.call("list_multipart_uploads", self._place, Prefix=self._place.key).get("Uploads", [])
            own = re.compile(re.escape(self._place.key) + (rf"[^/]*{re.escape(SUFFIX)}" if self._is_folder else ""))
            for each in left:
                if own.fullmatch(each["Key"]) and each["Initiated"] < datetime.now(UTC) - LEFT_AFTER:
                    self._store.call("abort_multipart_upload", self._place, Key=each["Key"], UploadId=each["UploadId"])

    def new(self, name: str) -> "NewObject":
        """Return the object that is to be written; `name` is its name if this is a folder."""
        place = self._place._replace(key=self._place.key + name) if self._is_folder else self._place
        return NewObject(self._store, place, self._part_bytes)

    @contextlib.contextmanager
    def open(self) -> Iterator[Opened]:
        """Open the backup."""
        if self._is_folder:
            raise InvalidRequest("invalid_request", f"{self.name} is a folder; the name of a backup ends with {SUFFIX}")
        raw = _Object(self._store, self._place)
        with io.BufferedReader(raw, RANGE_BYTES) as stream:
            yield Opened(cast(BinaryIO, stream), raw.size, self._place.key.rpartition("/")[2])

    def found(self) -> list[Found]:
        """Return what the backups in the folder say of themselves."""
        if not self._is_folder:
            raise InvalidRequest("invalid_request", f"{self.name} is one backup; give its folder")
        with ThreadPoolExecutor(CALLS_MAX) as pool:
            return list(pool.map(self._described, self._objects()))

    def _objects(self) -> Iterator[dict[str, Any]]:
        more: dict[str, Any] = {}
        while True:
            page = self._store.call("list_objects_v2", self._place, Prefix=self._place.key, Delimiter="/", **more)
            yield from (each for each in page.get("Contents", []) if each["Key"].endswith(SUFFIX))
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def _described(self, listed: dict[str, Any]) -> Found:
        place = self._place._replace(key=listed["Key"])
        try:
            begin = self._store.read(place, 0, SUMMARY_BYTES).content
        except KeelMQError as exc:
            if exc.code != "store_not_found":
                raise
            return {"file": place.url, "bytes": listed["Size"], "error": "it was removed meanwhile"}
        return described(place.url, io.BytesIO(begin), listed["Size"])


class _Object(io.RawIOBase):
    """An object, read by ranges. It stays the same one: when it is replaced, reading raises Conflict."""

    def __init__(self, store: ObjectStore, place: Location) -> None:
        first = store.read(place, 0, 1)
        self._store, self._place, self._tag, self._position = store, place, first.tag, 0
        self.size = first.object_bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, begin + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self.size - self._position)
        if wanted <= 0:
            return 0
        content = self._store.read(self._place, self._position, wanted, self._tag).content
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)


class NewObject:
    """An object that appears under its name when it is whole and stored, and replaces nothing. In memory is at most
    what one part and one call of `write` have, twice. All methods raise KeelMQError.
    """

    def __init__(self, store: ObjectStore, place: Location, part_bytes: int) -> None:
        self.name = place.url
        self.size_bytes = 0
        self._store, self._place, self._part_bytes = store, place, part_bytes
        self._buffer = bytearray()
        self._parts: list[dict[str, Any]] = []
        self._mark = secrets.token_hex(8)
        self._upload_id = ""
        self.is_published = False

    def __enter__(self) -> Self:
        begun = self._call("create_multipart_upload", Metadata={MARK: self._mark})
        self._upload_id = begun["UploadId"]
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.is_published:
            return
        try:
            self._call("abort_multipart_upload", UploadId=self._upload_id)
        except KeelMQError as exc:
            if exc.extra.get("store_code") == "NoSuchUpload":
                return
            say(
                f"warning: parts of {self.name} stay in the store, until a backup to the same place tomorrow or a rule "
                f"of the bucket removes them: {exc.detail}",
                file=sys.stderr,
            )

    def write(self, data: bytes) -> None:
        """Take the bytes; when they fill parts, return when the store has these."""
        self._buffer += data
        self.size_bytes += len(data)
        while len(self._buffer) >= self._part_bytes:
            self._send_part()

    def publish(self) -> None:
        """Give the object its name; stored on return. Raises Conflict if there is one of this name."""
        if self._buffer:
            self._send_part()
        done = {"UploadId": self._upload_id, "MultipartUpload": {"Parts": self._parts}}
        try:
            try:
                self._call("complete_multipart_upload", **done, IfNoneMatch="*")
            except KeelMQError as exc:
                if exc.extra.get("store_code") != "NotImplemented":
                    raise
                ObjectPlace(self._place, self._store).prepare()  # not at once with the next call; the store has no way
                self._call("complete_multipart_upload", **done)
        except KeelMQError as exc:
            # The answer to the first try may be lost, and the next one finds the upload completed.
            if not self._is_there():
                raise (_exists(self._place) if isinstance(exc, Conflict) else exc) from None
        self.is_published = True

    def _send_part(self) -> None:
        number = len(self._parts) + 1
        if number > PARTS_MAX:
            raise LimitExceeded(
                "backup_too_large",
                f"{self.name} has more than {PARTS_MAX} parts of {self._part_bytes >> 20} MiB; next: a larger "
                "--part-size",
            )
        part = bytes(self._buffer[: self._part_bytes])
        # What does not match its MD5 is refused by the store.
        digest = base64.b64encode(hashlib.md5(part, usedforsecurity=False).digest()).decode()
        sent = self._call("upload_part", UploadId=self._upload_id, PartNumber=number, Body=part, ContentMD5=digest)
        self._parts.append({"PartNumber": number, "ETag": sent["ETag"]})
        del self._buffer[: self._part_bytes]

    def _is_there(self) -> bool:
        """Return whether the object is that of this upload."""
        try:
            return bool(self._call("head_object")["Metadata"].get(MARK) == self._mark)
        except KeelMQError:
            return False

    def _call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        return self._store.call(operation, self._place, Key=self._place.key, **parameters)


def _exists(place: Location) -> Conflict:
    return Conflict("file_exists", f"{place.url} exists; a backup never replaces one")
