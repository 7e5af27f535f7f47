"""Calls of an S3-compatible object store, by boto3 (the extra `s3`), with its errors as sentences.

Credentials, region, endpoint, proxy and certificates come of the AWS variables and profiles alone, as boto3 finds them.
No message repeats what boto3 says of them.
"""

import re
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

from keelmq.errors import Conflict, InvalidRequest, KeelMQError, NotFound, Unavailable
from keelmq.version import VERSION, how_to_install

SCHEME: Final = "s3://"
CONNECT_TIMEOUT_S: Final = 10
READ_TIMEOUT_S: Final = 60
READ_ATTEMPTS: Final = 3
"""Maximum tries of a range whose content breaks off; boto3 repeats only what fails before the content."""
CALLS_MAX: Final = 8
"""Number of calls at a time."""
_REGION: Final = "us-east-1"
"""The region of whoever names none."""
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_CREDENTIALS: Final = "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_NOT_ACCEPTED: Final = {
    *("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "InvalidClientTokenId"),
    *("TokenRefreshRequired", "AuthFailure", "UnrecognizedClientException", "NotSignedUp"),
}
_DENIED: Final = {"AccessDenied", "AllAccessDisabled", "AccountProblem", "403"}
_OTHER_REGION: Final = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_ABSENT: Final = {"NoSuchKey", "404"}
EXISTS: Final = {"PreconditionFailed", "ConditionalRequestConflict"}
"""Codes of a store's answer to a condition that does not hold."""
_CREDENTIALS_MISSING: Final = {
    *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound"),
    *("InvalidConfigError", "TokenRetrievalError", "SSOTokenLoadError", "UnauthorizedSSOTokenError", "SSOError"),
    *("RefreshWithMFAUnsupportedError", "MetadataRetrievalError"),
}


class Location(NamedTuple):
    """A place in a store: an object, or a folder when the key is empty or ends with a slash."""

    bucket: str
    key: str

    @property
    def url(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"

    @property
    def folder(self) -> Self:
        """The folder in which the object lies; a folder itself."""
        return self._replace(key=self.key[: self.key.rfind("/") + 1])


class Advice(NamedTuple):
    """Words of the sentences that depend on the command. The default is that of backups."""

    packages: str = "'./client[cli,s3]'"
    """Packages of a clone with boto3, as pip takes them."""
    endpoint: str = "--endpoint-url and AWS_ENDPOINT_URL"
    absent: str = "`keelmq backup list {folder}` shows what is"
    permissions: str = "docs/backup.md has the permissions that a backup needs"


@dataclass(frozen=True, repr=False)
class Access:
    """Address and credentials for another client of the store. The token is empty for credentials that last."""

    endpoint_url: str
    region: str
    key_id: str
    secret_key: str
    token: str


BACKUPS: Final = Advice()


class Range(NamedTuple):
    """Part of an object, the size of all of it, and the tag that it has until it is replaced."""

    content: bytes
    object_bytes: int
    tag: str


def parse_location(text: str) -> Location:
    """Parse s3://BUCKET/KEY. Raises InvalidRequest, without repeating what may be a password."""
    bucket, _, key = text.removeprefix(SCHEME).partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise InvalidRequest(
            "invalid_request",
            f"a place in an object store is s3://BUCKET/PREFIX/, without credentials: these are in {_CREDENTIALS}",
        )
    return Location(bucket, key)


class ObjectStore:
    """A store, for any number of threads. All calls raise KeelMQError: Unavailable when it may go better later,
    NotFound, Conflict for a condition that does not hold, with the store's own code in `extra["store_code"]`.
    """

    def __init__(self, endpoint_url: str | None = None, *, advice: Advice = BACKUPS) -> None:
        """Ask nothing yet. Without an endpoint it is that of AWS_ENDPOINT_URL or the profile, or Amazon's. Raises
        KeelMQError when boto3 is missing, and InvalidRequest.
        """
        if endpoint_url is not None:
            _require_endpoint(endpoint_url)
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
        except ModuleNotFoundError as exc:
            if exc.name not in ("boto3", "botocore"):
                raise
            how = how_to_install(advice.packages)
            raise KeelMQError("package_missing", f"s3:// needs the package boto3: install it {how}") from None
        self._failures, self._refusals, self._advice = BotoCoreError, ClientError, advice
        config = Config(
            user_agent_extra=f"keelmq/{VERSION}",
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            max_pool_connections=CALLS_MAX,
            # Stores other than Amazon's refuse trailers with checksums; parts are sent with their MD5, which all know.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        try:
            self._session = boto3.session.Session()
            self._client = self._session.client("s3", endpoint_url=endpoint_url, config=config)
        except BotoCoreError as exc:
            raise _failure(exc, "the object store", advice) from None
        except ValueError:
            raise InvalidRequest("invalid_request", f"the endpoint is no URL; look at {advice.endpoint}") from None

    @property
    def endpoint(self) -> str:
        """Address of the store, for messages."""
        return _without_credentials(self._client.meta.endpoint_url)

    def call(self, operation: str, place: Location, **parameters: Any) -> dict[str, Any]:
        """Call an operation of boto3's client on the bucket of `place`, and return the answer."""
        try:
            answer: dict[str, Any] = getattr(self._client, operation)(Bucket=place.bucket, **parameters)
        except self._refusals as exc:
            raise self._refusal(exc.response, operation, place) from None
        except self._failures as exc:
            raise _failure(exc, self.endpoint, self._advice) from None
        return answer

    def access(self) -> Access:
        """Return how other clients reach the store, with credentials that are valid now: temporary ones are renewed
        some minutes before they expire.
        """
        try:
            found = self._session.get_credentials()
            frozen = found.get_frozen_credentials() if found is not None else None
        except self._refusals:  # of a role that cannot be assumed any more
            raise _no_credentials("CredentialRetrievalError") from None
        except self._failures as exc:
            raise _failure(exc, self.endpoint, self._advice) from None
        if frozen is None:
            raise _no_credentials("NoCredentialsError")
        region = self._client.meta.region_name
        return Access(
            self._client.meta.endpoint_url,
            _REGION if region in (None, "aws-global") else region,
            frozen.access_key,
            frozen.secret_key,
            frozen.token or "",
        )

    def read(self, place: Location, begin: int, length: int, tag: str | None = None) -> Range:
        """Read at most `length` bytes (> 0) of the object, none at its end. With `tag`, raises Conflict if it was
        replaced.
        """
        condition = {} if tag is None else {"IfMatch": tag}
        wanted = f"bytes={begin}-{begin + length - 1}"
        for attempt in range(1, READ_ATTEMPTS + 1):
            try:
                answer = self.call("get_object", place, Key=place.key, Range=wanted, **condition)
            except KeelMQError as exc:
                if exc.extra.get("store_code") != "InvalidRange":
                    raise
                return Range(b"", begin, tag or "")  # the object ends here, or is empty
            try:
                content: bytes = answer["Body"].read()
            except self._failures as exc:
                if attempt == READ_ATTEMPTS:
                    raise _failure(exc, self.endpoint, self._advice) from None
                continue
            size = int(answer["ContentRange"].rpartition("/")[2]) if "ContentRange" in answer else len(content)
            return Range(content, size, answer["ETag"])
        raise AssertionError

    def _refusal(self, answer: dict[str, Any], operation: str, place: Location) -> KeelMQError:
        code = str(answer.get("Error", {}).get("Code", ""))
        status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        extra = {"store_code": code}
        action = operation.replace("_", " ")
        if code == "NoSuchBucket":
            text = (
                f"{self.endpoint} has no bucket {place.bucket}: make it, or check its name, and {self._advice.endpoint}"
            )
            return NotFound("store_not_found", text, extra=extra)
        if code in _ABSENT:
            text = f"{place.url} is not there; {self._advice.absent.format(folder=place.folder.url)}"
            return NotFound("store_not_found", text, extra=extra)
        if code in EXISTS:
            return Conflict("store_conflict", f"{place.url} was made or replaced meanwhile", extra=extra)
        if code in _NOT_ACCEPTED:
            text = f"{self.endpoint} does not accept the credentials ({code}): check {_CREDENTIALS}"
        elif code in _DENIED:
            text = (
                f"{self.endpoint} does not allow these credentials to {action} in the bucket {place.bucket} "
                f"({code}): {self._advice.permissions}"
            )
        elif code in _OTHER_REGION:
            text = f"the bucket {place.bucket} is in another region ({code}): name it by AWS_REGION"
            return KeelMQError("store_unusable", text, extra=extra)
        elif code == "RequestTimeTooSkewed":
            text = f"{self.endpoint} says that the clock of this machine is wrong: set it, and repeat the command"
        elif status >= 500 or status == 429 or code in ("SlowDown", "RequestTimeout"):
            text = f"{self.endpoint} cannot {action} now ({code or status}): repeat the command later"
            return Unavailable("store_unreachable", text, extra=extra)
        else:
            text = f"{self.endpoint} refuses to {action} in the bucket {place.bucket} ({code or status})"
            return KeelMQError("store_unusable", text, extra=extra)
        return KeelMQError("store_denied", text, extra=extra)


def _failure(error: Exception, endpoint: str, advice: Advice) -> KeelMQError:
    """Return the error for one that boto3 raises without an answer. Its text may have parts of credentials or URLs
    with them, so its name has to do.
    """
    from botocore.exceptions import ConnectionError as NoConnection
    from botocore.exceptions import HTTPClientError

    name = type(error).__name__
    if name in _CREDENTIALS_MISSING:
        return _no_credentials(name)
    if name == "SSLError":
        return KeelMQError(
            "store_unreachable", f"the certificate of {endpoint} is not trusted: AWS_CA_BUNDLE names its authority"
        )
    if isinstance(error, HTTPClientError | NoConnection) or name == "IncompleteReadError":
        text = f"{endpoint} cannot be reached, or breaks off ({name}): check {advice.endpoint} and the network, and "
        return Unavailable("store_unreachable", f"{text}repeat the command")
    return KeelMQError(
        "store_unusable", f"the object store cannot be used ({name}): check the AWS_ variables and files"
    )


def _no_credentials(name: str) -> KeelMQError:
    return KeelMQError("store_denied", f"no usable credentials for the object store ({name}): set {_CREDENTIALS}")


def _require_endpoint(url: str) -> None:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        valid = False
    if not valid:
        raise InvalidRequest(
            "invalid_request",
            "--endpoint-url is a URL such as https://minio.example:9000, without credentials: these are in "
            f"{_CREDENTIALS}",
        )


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], path="", query="").geturl()
