"""Tables in an object store with the protocol of S3, by boto3 (the extra `keelmq-spark[s3]`).

A store has no lock. Two jobs are told apart by what a store creates only once: the record of a commit, and each version
of a Delta table. Data files have names that no other job uses, so the loser overwrites nothing.
"""

import atexit
import base64
import hashlib
import re
import secrets
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from keelmq.cli.operations.object_store import SCHEME as SCHEME
from keelmq.cli.operations.object_store import Advice, Location, ObjectStore, parse_location
from keelmq.errors import Conflict, KeelMQError, NotFound
from keelmq_spark.tables.errors import TablesError
from keelmq_spark.tables.rewriting import parquet_of

ADVICE: Final = Advice(
    packages="'./client[cli,s3]' './spark[s3]'",
    endpoint="AWS_ENDPOINT_URL",
    absent="the tables are not whole",
    permissions="docs/lineage.md has the permissions that the tables need",
)
OBJECT_BYTES_MAX: Final = 5 << 30
"""Largest object that a store takes in one request."""
_FENCE: Final = "_fence"
_MARK: Final = "keelmq"
"""Name of the metadata by which a creation whose answer was lost is told from another job's."""
_PREFIX: Final = re.compile(r"(?:[A-Za-z0-9._=@,+-]+/)*")
"""Keys that are the same in a URL, so that all programs mean the same object."""


class ObjectFolder:
    """Storage under a prefix of a bucket, which has to exist. See storage.py for what the methods promise."""

    def __init__(self, url: str) -> None:
        """Ask nothing yet. Raises TablesError for a place that cannot be, and when boto3 is missing."""
        self._location = require_location(url)
        with _told():
            self._store = ObjectStore(advice=ADVICE)

    @property
    def name(self) -> str:
        return self._location.url.rstrip("/")

    def names(self, folder: str) -> list[str]:
        prefix = f"{self._location.key}{folder}/"
        names: list[str] = []
        more: dict[str, Any] = {}
        while True:
            page = self._call("list_objects_v2", Prefix=prefix, Delimiter="/", **more)
            names += [each["Key"].removeprefix(prefix) for each in page.get("Contents", [])]
            if not page.get("IsTruncated"):
                return sorted(names)
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def read(self, path: str) -> bytes:
        try:
            with _told():
                return self._store.read(self._at(path), 0, OBJECT_BYTES_MAX).content
        except TablesError as exc:
            if _is_absent(exc.__cause__):
                raise FileNotFoundError(self._at(path).url) from None
            raise

    def write(self, path: str, data: bytes) -> None:
        self._put(path, data)

    def create(self, path: str, data: bytes) -> None:
        mark = secrets.token_hex(8)
        try:
            self._put(path, data, IfNoneMatch="*", Metadata={_MARK: mark})
        except TablesError as exc:
            if not isinstance(exc.__cause__, Conflict):
                raise
            if self._mark_of(path) != mark:  # otherwise the answer to an earlier try of this request was lost
                raise FileExistsError(self._at(path).url) from None

    def delete(self, path: str) -> None:
        self._call("delete_object", Key=self._at(path).key)

    def write_rows(self, rows: Any, folder: str, name: str, table: str) -> tuple[str, int]:
        stem, _, suffix = name.rpartition(".")
        unique = f"{stem}-{uuid.uuid4().hex}.{suffix}"
        data = parquet_of(rows, table)
        self._put(f"{folder}/{unique}", data)
        return unique, len(data)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Require that the store creates an object only once. That is what excludes a second job, not now but at its
        first commit.
        """
        if self._makes_fence() and self._makes_fence():
            raise TablesError(
                f"{self._store.endpoint} creates an object that exists already (it ignores If-None-Match), so two jobs "
                "would write over each other: use another store, or a directory"
            )
        yield

    def _makes_fence(self) -> bool:
        """Return whether an object was created that exists from now on."""
        try:
            self.create(_FENCE, b"A job has written these tables.\n")
        except FileExistsError:
            return False
        return True

    def directory(self) -> Path:
        raise TablesError(
            f"{self.name} is in an object store, which has tables of --format delta only: readers of Parquet tables go "
            "by the names in a directory"
        )

    def checkpoints(self) -> Path:
        path = Path(tempfile.mkdtemp(prefix="keelmq-lineage-"))
        atexit.register(shutil.rmtree, path, ignore_errors=True)
        return path

    def uri(self, folder: str) -> str:
        return self._at(folder).url

    def delta_options(self) -> dict[str, str]:
        with _told():
            access = self._store.access()
        options = {
            "aws_access_key_id": access.key_id,
            "aws_secret_access_key": access.secret_key,
            "aws_region": access.region,
            "aws_endpoint": access.endpoint_url,
            "aws_allow_http": str(access.endpoint_url.startswith("http:")).lower(),
            "aws_virtual_hosted_style_request": "false",
            "aws_conditional_put": "etag",  # whatever the environment says: a version is created, never replaced
        }
        return options | ({"aws_session_token": access.token} if access.token else {})

    def _at(self, path: str) -> Location:
        return self._location._replace(key=self._location.key + path)

    def _call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        with _told():
            return self._store.call(operation, self._location, **parameters)

    def _put(self, path: str, data: bytes, **conditions: Any) -> None:
        # What does not match its MD5 is refused by the store.
        digest = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        self._call("put_object", Key=self._at(path).key, Body=data, ContentMD5=digest, **conditions)

    def _mark_of(self, path: str) -> str | None:
        try:
            mark: str | None = self._call("head_object", Key=self._at(path).key)["Metadata"].get(_MARK)
        except TablesError as exc:
            if _is_absent(exc.__cause__):
                return None
            raise
        return mark


def require_location(url: str) -> Location:
    """Return the folder that a URL names. Raises TablesError, without repeating what may be a password."""
    with _told():
        location = parse_location(url)
    key = location.key.rstrip("/")
    folder = location._replace(key=key and f"{key}/")
    if not _PREFIX.fullmatch(folder.key) or {".", ".."} & set(folder.key.split("/")):
        raise TablesError(
            f"the tables are at {SCHEME}BUCKET/PREFIX; a prefix has letters, digits and any of . _ = @ , + - between "
            "single slashes"
        )
    return folder


@contextmanager
def _told() -> Iterator[None]:
    """Raise the errors of the store as TablesError, with the first as its cause."""
    try:
        yield
    except KeelMQError as exc:
        raise TablesError(exc.detail) from exc


def _is_absent(error: BaseException | None) -> bool:
    return isinstance(error, NotFound) and error.extra.get("store_code") != "NoSuchBucket"
