"""An S3-compatible object store for tests: moto's server as a process of its own, which checks credentials."""

import asyncio
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import boto3
import pytest

from deploy.local_nodes import free_ports
from tests.patience import PATIENCE_S
from tests.thin_link import ThinLink

REGION: Final = "us-east-1"
ALL: Final = {"Effect": "Allow", "Action": "*", "Resource": "*"}
MAY_DO_ALL: Final = json.dumps({"Version": "2012-10-17", "Statement": [ALL]})
ANY: Final = "any"
LIST_PAGE: Final = 2
"""Objects on a page of a list; so few that short lists have several pages."""


class StoreProcess:
    """A context manager: while it is entered, a store runs, with one user, who may do everything in it."""

    def __init__(self, directory: Path, list_page: int = LIST_PAGE) -> None:
        """Objects are listed `list_page` at a time, where a client does not say how many."""
        self._list_page = list_page
        self.port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = directory / "object-store.log"
        self._absent = directory / "no-such-file"
        self._key: dict[str, str] = {}

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        environment = {**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(self._list_page)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            self._wait()
            self._key = self._made_user()
            self.client = self._client("s3")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self._end()

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a client finds the store, and no files of whoever runs the tests."""
        return {
            "AWS_ACCESS_KEY_ID": self._key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": self._key["SecretAccessKey"],
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_CONFIG_FILE": str(self._absent),
            "AWS_SHARED_CREDENTIALS_FILE": str(self._absent),
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "1",
            "NO_PROXY": "127.0.0.1",
        }

    def new_bucket(self) -> str:
        """Make a bucket that nobody else uses, and return its name."""
        name = f"bucket-{secrets.token_hex(8)}"
        self.client.create_bucket(Bucket=name)
        return name

    def use(self, variables: pytest.MonkeyPatch) -> None:
        """Let this process, and those that it starts, find the store."""
        for name, value in self.environment.items():
            variables.setenv(name, value)

    def variables_of(self, user: str, *actions: str) -> dict[str, str]:
        """Make a user who may do these actions and nothing else, and return the variables of its credentials."""
        with contextlib.closing(self._client("iam")) as iam:
            iam.create_user(UserName=user)
            if actions:
                policy = {"Version": "2012-10-17", "Statement": [ALL | {"Action": list(actions)}]}
                iam.put_user_policy(UserName=user, PolicyName="some", PolicyDocument=json.dumps(policy))
            key = iam.create_access_key(UserName=user)["AccessKey"]
        return {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}

    def revoke(self, user: str) -> None:
        """Make the credentials of a user invalid."""
        with contextlib.closing(self._client("iam")) as iam:
            for key in iam.list_access_keys(UserName=user)["AccessKeyMetadata"]:
                iam.delete_access_key(UserName=user, AccessKeyId=key["AccessKeyId"])

    def keys(self, bucket: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [each["Key"] for page in pages for each in page.get("Contents", [])]

    def uploads(self, bucket: str) -> list[str]:
        """Return the keys of the uploads that were begun, and neither completed nor aborted."""
        return [each["Key"] for each in self.client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])]

    def flip(self, bucket: str, key: str, position: int) -> None:
        """Change one byte of an object."""
        content = bytearray(self.client.get_object(Bucket=bucket, Key=key)["Body"].read())
        content[position] ^= 1
        self.client.put_object(Bucket=bucket, Key=key, Body=bytes(content))

    def _wait(self) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while True:
            assert self._process.poll() is None, self._log.read_text()
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert time.monotonic() < end_s, self._log.read_text()
                time.sleep(0.02)

    def _made_user(self) -> dict[str, str]:
        """Make the user; from then on the store checks signatures and permissions."""
        with contextlib.closing(self._client("iam", aws_access_key_id=ANY, aws_secret_access_key=ANY)) as iam:
            iam.create_user(UserName="backup")
            iam.put_user_policy(UserName="backup", PolicyName="all", PolicyDocument=MAY_DO_ALL)
            key: dict[str, str] = iam.create_access_key(UserName="backup")["AccessKey"]
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as connection:
            connection.sendall(b"POST /moto-api/reset-auth HTTP/1.0\r\nContent-Length: 1\r\n\r\n0")
            with connection.makefile("rb") as answer:
                assert b" 200 " in answer.readline()
        return key

    def _client(self, service: str, **credentials: str) -> Any:
        given = credentials or {
            "aws_access_key_id": self._key["AccessKeyId"],
            "aws_secret_access_key": self._key["SecretAccessKey"],
        }
        return boto3.session.Session().client(service, endpoint_url=self.url, region_name=REGION, **given)

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()


class CutLink(ThinLink):
    """A way to the store that breaks, `cuts` times, when `after_bytes` have gone over it."""

    def __init__(self, store: StoreProcess, after_bytes: int, cuts: int = 1) -> None:
        port = free_ports(1)[0]
        super().__init__(port, store.port, sys.maxsize)
        self.url = f"http://127.0.0.1:{port}"
        self.cuts_left = cuts
        self._after_bytes = after_bytes

    async def _pass(self, size: int) -> None:
        self.carried_bytes += size
        if self.cuts_left and self.carried_bytes > self._after_bytes:
            self.cuts_left -= 1
            raise ConnectionResetError


class HeldLink(ThinLink):
    """A way to the store that carries `after_bytes`, and what comes behind them when it is let go."""

    def __init__(self, store: StoreProcess, after_bytes: int) -> None:
        port = free_ports(1)[0]
        super().__init__(port, store.port, sys.maxsize)
        self.url = f"http://127.0.0.1:{port}"
        self._after_bytes = after_bytes
        self._let_go = asyncio.Event()

    def let_go(self) -> None:
        self._loop.call_soon_threadsafe(self._let_go.set)

    async def _pass(self, size: int) -> None:
        self.carried_bytes += size
        if self.carried_bytes > self._after_bytes:
            await self._let_go.wait()


@pytest.fixture
def server(process: StoreProcess, monkeypatch: pytest.MonkeyPatch) -> StoreProcess:
    """Return the store of the fixture `process`, in the variables of this process."""
    process.use(monkeypatch)
    return process
