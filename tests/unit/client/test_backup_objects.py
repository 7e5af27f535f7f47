"""Backups in an object store: whole or not there, and every error says what to do. The store is a real process."""

import io
import json
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final

import pytest
from botocore.response import StreamingBody
from typer.testing import CliRunner

from keelmq.cli.app import app
from keelmq.cli.operations import backup_objects
from keelmq.cli.operations.backup_objects import PART_BYTES_MIN, NewObject, ObjectPlace
from keelmq.cli.operations.object_store import READ_ATTEMPTS, Location, ObjectStore, parse_location
from keelmq.errors import Conflict, InvalidRequest, KeelMQError, LimitExceeded, Unavailable
from store.snapshots.backup_frames import Begin, FrameEncoder
from tests.object_store import CutLink, StoreProcess
from tests.object_store import server as server
from tests.unit.client.test_cli_extra import console_script
from tests.unit.client.test_cli_extra import run as run_without

PART: Final = PART_BYTES_MIN
LARGE: Final = bytes(range(256)) * (10 << 12)  # 10 MiB: two whole parts
FALSE: Final = "not-to-be-printed"


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    with StoreProcess(tmp_path_factory.mktemp("store")) as made:
        yield made


@pytest.fixture
def place(server: StoreProcess) -> Location:
    """Return a folder in a new bucket."""
    return Location(server.new_bucket(), "shop/")


def new(place: Location, name: str = "a.backup", url: str | None = None) -> NewObject:
    return NewObject(ObjectStore(url), place._replace(key=place.key + name), PART)


def contents(made: ObjectPlace) -> bytes:
    with made.open() as opened:
        return opened.stream.read(opened.size_bytes)


def whole_backup(cluster_id: str = "shop", created_ms: int = 1) -> bytes:
    encoder = FrameEncoder()
    begin = Begin(
        format=1,
        cluster_id=cluster_id,
        cluster_uid="uid",
        node_id=1,
        version="0.3.0",
        feature_level=1,
        feature_version="",
        created_ms=created_ms,
        index=7,
        term=1,
        state_hash="00ff",
        state_format="3",
        base_position=104,
        base_index=7,
        base_term=1,
        estimated_pairs=0,
        log_bytes=0,
    )
    return encoder.begin(begin) + encoder.end(0, blake2b(digest_size=16).digest())


def cli(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["backup", *arguments, "--json"])


def test_an_object_appears_when_it_is_whole(server: StoreProcess, place: Location) -> None:
    with new(place) as made:
        for begin in range(0, len(LARGE), 1 << 20):
            made.write(LARGE[begin : begin + (1 << 20)])
        made.write(b"the rest")
        assert server.keys(place.bucket) == []
        made.publish()
        assert made.size_bytes == len(LARGE) + 8
    assert (server.keys(place.bucket), server.uploads(place.bucket)) == (["shop/a.backup"], [])
    assert server.client.head_object(Bucket=place.bucket, Key="shop/a.backup")["ETag"].endswith('-3"')
    assert contents(ObjectPlace(Location(place.bucket, "shop/a.backup"), ObjectStore())) == LARGE + b"the rest"


def test_nothing_is_left_of_an_object_that_is_given_up(server: StoreProcess, place: Location) -> None:
    made = new(place)
    with made:
        made.write(LARGE)
        assert server.uploads(place.bucket) == ["shop/a.backup"]
    assert (server.keys(place.bucket), server.uploads(place.bucket)) == ([], [])


def test_an_upload_that_breaks_off_is_aborted(server: StoreProcess, place: Location) -> None:
    with CutLink(server, after_bytes=PART + PART // 2) as link:
        with pytest.raises(Unavailable, match="breaks off") as caught, new(place, url=link.url) as made:
            made.write(LARGE)
        assert (link.cuts_left, caught.value.code) == (0, "store_unreachable")
    assert (server.keys(place.bucket), server.uploads(place.bucket)) == ([], [])


def test_what_cannot_be_aborted_is_said_and_removed_by_the_next_one(
    server: StoreProcess, place: Location, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        CutLink(server, after_bytes=PART, cuts=100) as link,
        pytest.raises(Unavailable),
        new(place, url=link.url) as it,
    ):
        it.write(LARGE)
    assert "parts of s3://" in capsys.readouterr().err
    assert server.uploads(place.bucket) == ["shop/a.backup"]
    for key in ("shop/deeper/a.backup", "shop/letters", "bank/a.backup"):
        server.client.create_multipart_upload(Bucket=place.bucket, Key=key)
    ObjectPlace(place, ObjectStore()).remove_left()  # for this store all uploads began in 2010
    assert sorted(server.uploads(place.bucket)) == ["bank/a.backup", "shop/deeper/a.backup", "shop/letters"]


def test_an_interruption_that_ends_does_not_matter(
    server: StoreProcess, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")
    with CutLink(server, after_bytes=PART + PART // 2) as link:
        with new(place, url=link.url) as made:
            made.write(LARGE)
            made.publish()
        assert link.cuts_left == 0
    assert contents(ObjectPlace(Location(place.bucket, "shop/a.backup"), ObjectStore())) == LARGE


def test_the_first_that_is_whole_gets_the_name(server: StoreProcess, place: Location) -> None:
    with new(place) as first, new(place) as second:
        first.write(b"first")
        second.write(b"second")
        first.publish()
        with pytest.raises(Conflict, match="exists") as caught:
            second.publish()
    assert caught.value.code == "file_exists"
    assert server.uploads(place.bucket) == []
    made = ObjectPlace(Location(place.bucket, "shop/a.backup"), ObjectStore())
    assert contents(made) == b"first"
    with pytest.raises(Conflict, match="exists"):
        made.prepare()


class Scripted(ObjectStore):
    """A store whose answers to some calls are lost, or that does not know conditions."""

    lost: str = ""
    refuses_conditions = False

    def call(self, operation: str, place: Location, **parameters: Any) -> dict[str, Any]:
        if self.refuses_conditions and "IfNoneMatch" in parameters:
            raise KeelMQError("store_unusable", "no", extra={"store_code": "NotImplemented"})
        answer = super().call(operation, place, **parameters)
        if operation == self.lost:
            raise Unavailable("store_unreachable", "lost")
        return answer


def test_an_object_whose_last_answer_was_lost_is_there(place: Location) -> None:
    store = Scripted()
    store.lost = "complete_multipart_upload"
    with NewObject(store, place._replace(key="a.backup"), PART) as made:
        made.write(b"all")
        made.publish()
    assert contents(ObjectPlace(Location(place.bucket, "a.backup"), store)) == b"all"


def test_a_store_without_conditions_replaces_nothing_that_is_seen(place: Location) -> None:
    store = Scripted()
    store.refuses_conditions = True
    for content in (b"first", b"second"):
        with NewObject(store, place._replace(key="a.backup"), PART) as made:
            made.write(content)
            if content == b"first":
                made.publish()
            else:
                with pytest.raises(Conflict, match="exists"):
                    made.publish()
    assert contents(ObjectPlace(Location(place.bucket, "a.backup"), store)) == b"first"


def test_a_backup_of_too_many_parts_says_what_to_do(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_objects, "PARTS_MAX", 1)
    with pytest.raises(LimitExceeded, match="--part-size"), new(place) as made:
        made.write(LARGE)


def test_an_object_that_is_replaced_while_it_is_read_is_not_mixed(server: StoreProcess, place: Location) -> None:
    made = ObjectPlace(Location(place.bucket, "a.backup"), ObjectStore())
    server.client.put_object(Bucket=place.bucket, Key="a.backup", Body=2 * LARGE)
    with made.open() as opened:
        opened.stream.read(1)
        server.client.put_object(Bucket=place.bucket, Key="a.backup", Body=LARGE + LARGE[::-1])
        with pytest.raises(Conflict, match="replaced"):
            opened.stream.read()


def test_ranges_are_asked_for_again_when_they_break_off(server: StoreProcess, place: Location) -> None:
    server.client.put_object(Bucket=place.bucket, Key="a.backup", Body=LARGE)

    class Half(ObjectStore):
        asked = 0

        def call(self, operation: str, place: Location, **parameters: Any) -> dict[str, Any]:
            answer = super().call(operation, place, **parameters)
            self.asked += 1
            if self.asked % READ_ATTEMPTS:
                answer["Body"].close()
                answer["Body"] = StreamingBody(io.BytesIO(b"half"), int(answer["ContentLength"]) + 1)
            return answer

    store = Half()
    assert contents(ObjectPlace(Location(place.bucket, "a.backup"), store)) == LARGE
    assert store.asked == 3 * READ_ATTEMPTS  # the size, and two ranges


def test_backups_are_listed_with_what_they_say_of_themselves(server: StoreProcess, place: Location) -> None:
    for number in range(3):
        content = whole_backup(created_ms=number + 1)
        server.client.put_object(Bucket=place.bucket, Key=f"shop/{number}.backup", Body=content)
    for key in ("shop/deeper/4.backup", "shop/letters", "other/5.backup"):
        server.client.put_object(Bucket=place.bucket, Key=key, Body=b"x")
    server.client.put_object(Bucket=place.bucket, Key="shop/empty.backup", Body=b"")
    for text in (place.url, place.url.removesuffix("/")):
        done = cli("list", text)
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert [each["file"] for each in found] == [f"{place.url}{name}.backup" for name in (2, 1, 0, "empty")]
        assert found[0]["bytes"] == len(whole_backup())
        assert "error" in found[-1]


def test_a_flipped_byte_is_found_and_not_fetched(server: StoreProcess, place: Location, tmp_path: Any) -> None:
    server.client.put_object(Bucket=place.bucket, Key="shop/a.backup", Body=whole_backup())
    url = f"{place.url}a.backup"
    assert json.loads(cli("verify", url).stdout)["whole"]
    server.flip(place.bucket, "shop/a.backup", 40)
    damaged = cli("verify", url)
    assert (damaged.exit_code, json.loads(damaged.stdout)["whole"]) == (1, False)
    assert "frame 0" in damaged.stdout
    assert cli("fetch", url, f"{tmp_path}/new/").exit_code == 1
    assert list((tmp_path / "new").iterdir()) == []


def test_a_backup_is_fetched_and_a_second_time_only_read(server: StoreProcess, place: Location, tmp_path: Any) -> None:
    server.client.put_object(Bucket=place.bucket, Key="shop/a.backup", Body=whole_backup())
    url = f"{place.url}a.backup"
    for _ in range(2):
        done = cli("fetch", url, f"{tmp_path}/new/")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["file"] == str(tmp_path / "new" / "a.backup")
        assert (tmp_path / "new" / "a.backup").read_bytes() == whole_backup()
        assert (tmp_path / "new" / "a.backup").stat().st_mode & 0o777 == 0o600
    server.client.put_object(Bucket=place.bucket, Key="shop/a.backup", Body=whole_backup(created_ms=2))
    other = cli("fetch", url, f"{tmp_path}/new/")
    assert (other.exit_code, json.loads(other.stderr)["error"]["code"]) == (1, "file_exists")
    assert (tmp_path / "new" / "a.backup").read_bytes() == whole_backup()


@pytest.mark.parametrize(
    ("variables", "text", "code", "words"),
    [
        ({}, "s3://no-such-bucket/shop/", "store_not_found", "has no bucket no-such-bucket: make it"),
        ({"AWS_ACCESS_KEY_ID": "unknown"}, "", "store_denied", "does not accept the credentials"),
        ({"AWS_SECRET_ACCESS_KEY": FALSE}, "", "store_denied", "does not accept the credentials"),
        ({"AWS_ACCESS_KEY_ID": ""}, "", "store_denied", "no usable credentials"),
        ({"AWS_PROFILE": "nobody"}, "", "store_denied", "no usable credentials"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "", "store_unreachable", "cannot be reached"),
        ({"AWS_ENDPOINT_URL": f"http://key:{FALSE}@127.0.0.1:1"}, "", "store_unreachable", "http://127.0.0.1:1 "),
        ({"AWS_ENDPOINT_URL": FALSE}, "", "invalid_request", "AWS_ENDPOINT_URL"),
        ({}, f"s3://key:{FALSE}@bucket/shop/", "invalid_request", "without credentials"),
        ({}, "s3://", "invalid_request", "s3://BUCKET/PREFIX/"),
    ],
)
def test_an_error_says_what_to_do_and_no_secret(
    server: StoreProcess,
    place: Location,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    text: str,
    code: str,
    words: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = cli("list", text or place.url)
    assert done.exit_code == (2 if code == "invalid_request" else 1), done.output
    error = json.loads(done.stderr)["error"]
    assert (error["code"], words in error["detail"]) == (code, True), error
    for secret in (FALSE, server.environment["AWS_SECRET_ACCESS_KEY"]):
        assert secret not in done.output


def test_other_places_and_options_are_refused(place: Location) -> None:
    for arguments, words in (
        (("verify", place.url), "is a folder"),
        (("list", f"{place.url}a.backup"), "is one backup"),
        (("verify", f"{place.url}a.backup"), "is not there"),
        (("list", place.url, "--endpoint-url", f"http://a:{FALSE}@c"), "without credentials"),
        (("create", place.url, "--part-size", "1M"), "from 5M to 1G"),
    ):
        done = cli(*arguments)
        assert done.exit_code in (1, 2)
        assert words in done.stderr, done.stderr


def test_a_user_without_permission_is_told_which_one(
    server: StoreProcess, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.variables_of("nobody").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(KeelMQError, match="does not allow these credentials to create multipart upload") as caught:
        new(place).__enter__()
    assert caught.value.code == "store_denied"
    ObjectPlace(Location(place.bucket, "a.backup"), ObjectStore()).prepare()  # who may only write need not see it


def test_the_store_needs_its_package_alone() -> None:
    done = run_without(("boto3", "botocore"), console_script("backup", "list", "s3://bucket/shop/", "--json"))
    assert done.returncode == 1
    error = json.loads(done.stderr)["error"]
    assert (error["code"], "pip install './client[cli,s3]'" in error["detail"]) == ("package_missing", True)
    assert run_without(("boto3", "botocore"), console_script("backup", "list", "/", "--json")).returncode == 0


def test_places_are_parsed() -> None:
    assert parse_location("s3://backups/shop/a.backup") == ("backups", "shop/a.backup")
    assert parse_location("s3://backups") == ("backups", "")
    for text in ("s3:///a", f"s3://user:{FALSE}@bucket/a", "s3://a b/c"):
        with pytest.raises(InvalidRequest):
            parse_location(text)
