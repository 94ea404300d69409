"""Bucket store: blobs in S3 and compatible servers, Google Cloud Storage and Azure, through obstore.

Each object is written with one PUT, so it is complete or absent. A request fails after 4 s without an
answer; a large object gets more time in proportion to its size. A PUT of an object that exists takes two
requests, each with that timeout. URLs end up in logs and process lists, so credentials in a URL are
refused, and no error quotes its query.
"""

import asyncio
import atexit
import contextlib
import dataclasses
import enum
import re
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, S3Store

from everlong.errors import BlobMissing, ConfigError, InvalidKey, StoreError, StoreUnavailable
from everlong.limits import MIB, OBJECT_BYTES_MAX, STORE_BYTES_PER_SECOND_MIN
from everlong.storage.base import (
    KEY_CHARS_MAX,
    BlobInfo,
    FailedPuts,
    OutOfOrder,
    check_key,
    check_object_size,
)

if TYPE_CHECKING:  # obstore has these types only for type checkers.
    from obstore.store import ClientConfig, RetryConfig

    Client = S3Store | GCSStore | AzureStore
# The options of each scheme's URL. Those of `S3_FURTHER` are passed to obstore unchanged.
S3_FURTHER: Final = (
    "checksum_algorithm",
    "disable_bulk_delete",
    "server_side_encryption",
    "sse_bucket_key_enabled",
    "sse_kms_key_id",
    "unsigned_payload",
)
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "s3": ("endpoint", "region", "path_style", "profile", *S3_FURTHER),
    "gs": ("endpoint", "service_account"),
    "az": ("account", "endpoint"),
}
_CREDENTIALS: Final[Mapping[str, str]] = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, in an AWS profile, or use a role",
    "gs": "the file that GOOGLE_APPLICATION_CREDENTIALS names",
    "az": "AZURE_STORAGE_ACCOUNT_KEY, or use a managed identity",
}
_SECRET: Final = re.compile(r"key|secret|token|passw|sign|sig$|sas|credential")
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
# S3 allows 1,024 bytes for prefix and key together.
_PREFIX_CHARS_MAX: Final = 1024 - KEY_CHARS_MAX - 1


@dataclasses.dataclass(frozen=True)
class BucketURL:
    """A checked bucket URL. Its `str` omits the query."""

    scheme: str
    bucket: str
    prefix: str
    options: Mapping[str, str] = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    def flag(self, name: str) -> bool | None:
        """Return an option that is true or false, or None if it is not given."""
        text = self.options.get(name)
        if text is not None and text.lower() not in ("true", "false"):
            raise ConfigError(f"the option {name} of {self} is neither true nor false. Write one.")
        return None if text is None else text.lower() == "true"


def parse_bucket_url(url: str) -> BucketURL:
    """Parse a bucket's URL. A `ConfigError` quotes nothing that may be secret."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise _build_credentials_error(parts.scheme)
    if not _BUCKET.fullmatch(parts.netloc):
        raise ConfigError(
            f"the store URL names no bucket. Write {parts.scheme}://bucket/prefix, letters, digits, "
            "'.', '_' and '-' in the bucket's name; a host and port go into endpoint=http://host:port"
        )
    if parts.fragment:
        raise ConfigError("the store URL has a '#', which a prefix cannot hold. Remove it.")
    place = BucketURL(parts.scheme, parts.netloc, _prefix(parts), _options(parts))
    if "endpoint" in place.options:
        _check_endpoint(place)
    return place


def describe_setup_failure(place: BucketURL, error: Exception) -> ConfigError:
    """Build the error for a store that a vendor's package refuses to set up.

    It omits the vendor's message, which quotes the values of options.
    """
    return ConfigError(
        f"the blob store {place} cannot be set up: an option of its URL or a variable of the "
        f"environment is wrong or missing ({type(error).__name__}). docs/how-to/deploy.md lists them."
    )


def _prefix(parts: SplitResult) -> str:
    prefix = parts.path.strip("/")
    try:
        if prefix:
            check_key(prefix)
    except InvalidKey:
        raise ConfigError(
            f"the prefix in the store URL {parts.scheme}://{parts.netloc}/... is refused: it is "
            "segments of letters, digits, '.', '_' and '-', joined by '/', none beginning with '.'"
        ) from None
    if len(prefix) > _PREFIX_CHARS_MAX:
        raise ConfigError(
            f"the prefix in the store URL is too long: {_PREFIX_CHARS_MAX} characters at most"
        )
    return prefix


def _options(parts: SplitResult) -> dict[str, str]:
    known = OPTIONS[parts.scheme]
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ConfigError(
            "the options of the store URL cannot be read. Write ?name=value&name=value"
        ) from None
    options = dict(pairs)
    for name in options.keys() - set(known):
        if _SECRET.search(name.lower()):
            raise _build_credentials_error(parts.scheme)
        raise ConfigError(
            f"the store URL has an option that {parts.scheme}:// does not know. It knows: "
            + ", ".join(known)
        )
    if len(options) < len(pairs) or not all(options.values()):
        raise ConfigError(
            "an option of the store URL is empty or given twice. Give each one value."
        )
    return options


def _check_endpoint(place: BucketURL) -> None:
    try:
        parts = urlsplit(place.options["endpoint"])
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # An invalid IPv6 address or port.
        sound = False
    if not sound or parts.query or parts.fragment:
        raise ConfigError(
            f"the endpoint of {place} is not a URL. Write endpoint=https://host:port, or http:// "
            "on a private network"
        )
    if "@" in parts.netloc:
        raise _build_credentials_error(place.scheme)


def _build_credentials_error(scheme: str) -> ConfigError:
    return ConfigError(
        "the store URL seems to hold credentials, and URLs end up in logs. Take them out and put "
        f"them into {_CREDENTIALS[scheme]}."
    )


# Faults: the meaning of obstore's errors. The server's message is never quoted: it may hold a signed
# request with its session token.


@dataclasses.dataclass(frozen=True)
class Fault:
    """A failure of the store, with a remedy."""

    what: str
    remedy: str
    permanent: bool = False
    """Whether the store's URL is wrong, so that retries cannot succeed."""


NO_ANSWER: Final = Fault(
    "it did not answer in time",
    "Check that it is up and not overloaded; Everlong retries.",
)
NO_BUCKET: Final = Fault(
    "there is no such bucket",
    "Create the bucket, or correct its name in the store's URL.",
    permanent=True,
)
_REGION: Final = Fault(
    "the bucket is in another region",
    "Add region=... to the store's URL, or set AWS_DEFAULT_REGION.",
    permanent=True,
)
_PLAIN_HTTP: Final = Fault(
    "its endpoint speaks plain http, but the store's URL does not name an http endpoint",
    "Write endpoint=http://... into the URL if the network is trusted, or use https.",
    permanent=True,
)
_UNREACHABLE: Final = Fault(
    "no server answers at its endpoint",
    "Check the endpoint in the store's URL, DNS and the network.",
)
_CERTIFICATE: Final = Fault(
    "the certificate of its endpoint is not trusted",
    "Name the authority's file in AWS_CA_BUNDLE, or correct the endpoint.",
)
_CLOCK: Final = Fault("it refuses requests because the clocks differ", "Set this machine's clock.")
_ARCHIVED: Final = Fault(
    "the object has been moved to an archive",
    "Restore it there, and exclude the prefix from that lifecycle rule.",
)
_BROKEN: Final = Fault("the connection broke", "Check the network; Everlong retries.")

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w{1,64})</Code>")
_KIND: Final = re.compile(r"\bkind: (Connect|Timeout|Interrupted|Request|Decode),")
_NO_BUCKET: Final = {"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"}
_OTHER_REGION: Final = {"PermanentRedirect", "AuthorizationHeaderMalformed"}
_BAD_CREDENTIALS: Final = {
    "AuthenticationFailed",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}
# Answers of status 400 that do not concern a condition: a plain PUT may get them too.
_BAD_BODY: Final = {"BadDigest", "EntityTooLarge", "IncompleteBody", "RequestTimeout"}
_BY_CODE: Final = {"RequestTimeTooSkewed": _CLOCK, "InvalidObjectState": _ARCHIVED}
_BY_KIND: Final = {"Connect": _UNREACHABLE, "Timeout": NO_ANSWER}


def parse_status(error: BaseException) -> int:
    """Return the HTTP status in an error of obstore, or 0."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0


def is_beyond_end(error: BaseException) -> bool:
    """Return whether a range starts beyond the object's end, as reported by the server or by obstore."""
    return parse_status(error) == 416 or "StartTooLarge" in str(error)


def is_retryable(error: BaseException) -> bool:
    """Return whether obstore retries a plain PUT after this error: no answer, or a temporary one."""
    kind = _KIND.search(str(error))
    status = parse_status(error)
    if status:
        return status in (408, 429) or status >= 500
    return kind is not None and kind[1] in ("Connect", "Interrupted", "Request")


def is_unknown_condition(error: BaseException) -> bool:
    """Return whether a server may have refused a PUT only because it does not support conditions."""
    status = parse_status(error)
    if status != 400:
        return status in (405, 501)
    found = _CODE.search(str(error))
    others = _BAD_BODY | _BAD_CREDENTIALS | _NO_BUCKET | _OTHER_REGION | _BY_CODE.keys()
    return found is None or found[1] not in others


def get_safe_cause(error: BaseException) -> BaseException | None:
    """Return the error to chain, or None if its text may quote the signed request."""
    refused = isinstance(error, UnauthenticatedError) or 400 <= parse_status(error) < 500
    return None if refused else error


def describe_fault(error: BaseException) -> Fault:
    """Return the fault behind an error of obstore. An unknown error counts as temporary."""
    if isinstance(error, TimeoutError):
        return NO_ANSWER
    text = str(error)
    status = parse_status(error)
    found = _CODE.search(text)
    code = found[1] if found else ""
    if code in _NO_BUCKET or "specified bucket does not exist" in text:
        return NO_BUCKET
    if code in _OTHER_REGION or "incorrectly configured region" in text:
        return _REGION
    if "URL scheme is not allowed" in text:
        return _PLAIN_HTTP
    if code in _BY_CODE:
        return _BY_CODE[code]
    if status in (401, 403) or code in _BAD_CREDENTIALS or isinstance(error, UnauthenticatedError):
        return _describe_refusal(status, code)
    if status:
        return Fault(
            f"it answered {f'{status} {code}'.strip()}",
            "Check the server's log; Everlong retries.",
        )
    if "InvalidCertificate" in text:
        return _CERTIFICATE
    kind = _KIND.search(text)
    return _BY_KIND.get(kind[1] if kind else "", _BROKEN)


def _describe_refusal(status: int, code: str) -> Fault:
    named = f" ({code})" if code else ""
    if code in _BAD_CREDENTIALS or status == 401:
        return Fault(
            f"it does not accept the credentials{named}",
            "Check the key, its secret and that they have not expired.",
        )
    if status == 0:
        return Fault(
            "no credentials are available",
            "Check their source: environment, profile, role or single sign-on.",
        )
    return Fault(
        f"it refuses access{named}",
        "Allow these credentials to list, read, write and delete under the prefix.",
    )


# Time to the first byte of an answer, and from one byte to the next. Callers retry, so an attempt need
# not wait longer, even for an overloaded server.
_ANSWER_SECONDS_MAX: Final = 4.0
_CONNECT_SECONDS_MAX: Final = 2.0
# Bound on a slow request: twice the 256 s of the largest object at the lowest rate.
_REQUEST_SECONDS_MAX: Final = (
    _ANSWER_SECONDS_MAX + 2 * OBJECT_BYTES_MAX / STORE_BYTES_PER_SECOND_MIN
)
# Load balancers and firewalls drop idle connections after a minute or more.
_IDLE_SECONDS_MAX: Final = 20.0
# obstore retries a refused connection or a 5xx answer twice within this time.
_RETRY_SECONDS_MAX: Final = 3.0
_RETRIES_MAX: Final = 2

# Parts of a file. S3 takes parts from 5 MiB on, and 10,000 of them: 160 GB. Four at a time take 64 MiB.
_PART_BYTES: Final = 16 * MIB
_PARTS_MAX: Final = 4

_LIST_PAGE: Final = 1000
# SeaweedFS needs about 1 ms for each key, and S3 accepts at most 1,000 keys in a request.
_DELETE_BATCH: Final = 250
_DELETE_CONCURRENCY: Final = 16

# obstore delivers results from its own thread, which needs the interpreter slightly longer than the
# caller. Up to Python 3.13, a thread that needs the interpreter during its shutdown aborts the
# process.
_EXIT_SECONDS: Final = 0.05
atexit.register(time.sleep, _EXIT_SECONDS)


def build_client_options(*, allow_http: bool, root_certificate: bytes | None) -> "ClientConfig":
    """Return the timeouts of every request."""
    options: ClientConfig = {
        "allow_http": allow_http,
        "connect_timeout": timedelta(seconds=_CONNECT_SECONDS_MAX),
        "pool_idle_timeout": timedelta(seconds=_IDLE_SECONDS_MAX),
        "timeout": timedelta(seconds=_REQUEST_SECONDS_MAX),
    }
    if root_certificate is not None:
        options["root_certificate"] = root_certificate
    return options


def add_read_timeout(options: "ClientConfig") -> "ClientConfig":
    """Add the timeout between two bytes. For a write, it would include the time to send the data."""
    return {**options, "read_timeout": timedelta(seconds=_ANSWER_SECONDS_MAX)}


def build_retry_options(*, retries_max: int = _RETRIES_MAX) -> "RetryConfig":
    """Return obstore's own retry policy. It does not cover timeouts, which leave no time for a retry."""
    return {
        "max_retries": retries_max,
        "retry_timeout": timedelta(seconds=_RETRY_SECONDS_MAX),
        "backoff": {
            "init_backoff": timedelta(milliseconds=50),
            "max_backoff": timedelta(milliseconds=500),
            "base": 2,
        },
    }


class _Created(enum.Enum):
    """The outcome of a PUT on the condition that the object does not exist."""

    NEW = enum.auto()
    EXISTS = enum.auto()
    UNKNOWN = enum.auto()
    """The request failed. The store may have the object, from this request or from before."""
    REFUSED = enum.auto()
    """The store does not seem to support the condition."""


_IS_NEW: Final = {_Created.NEW: True, _Created.EXISTS: False}


class BucketBlobStore:
    """A `BlobStore` under a prefix of a bucket. `open_store` creates and checks it.

    `creates` sends conditional PUTs; by default, `writes` does. It must not retry: a second attempt
    would find the object that the first one left, and mistake it for an older one.
    """

    def __init__(
        self,
        url: str,
        prefix: str,
        *,
        reads: "Client",
        writes: "Client",
        bulk_delete: bool,
        creates: "Client | None" = None,
        lists_ranges: bool = False,
    ) -> None:
        self._url = url
        self._prefix = f"{prefix}/" if prefix else ""
        self._reads = reads
        self._writes = writes
        self._creates = writes if creates is None else creates
        self._bulk_delete = bulk_delete
        self._lists_ranges = lists_ranges
        self._knows_create = True
        """Whether it supports PUTs on the condition that the object does not exist."""
        self._failed = FailedPuts()
        self._turns: dict[tuple[asyncio.AbstractEventLoop, str], tuple[asyncio.Lock, int]] = {}
        """A lock for each key with PUTs in progress, and the number of those PUTs."""

    def __repr__(self) -> str:
        return self._url

    def check(self) -> None:
        """Read one page of the listing; `ConfigError` if that shows a mistake in the URL."""
        try:
            next(iter(self._reads.list(self._prefix, chunk_size=1)), None)
        except (BaseError, OSError) as error:
            fault = describe_fault(error)
            kind = ConfigError if fault.permanent else StoreUnavailable
            raise self._error(kind, "open", fault) from get_safe_cause(error)

    async def put(self, key: str, data: bytes) -> bool | None:
        """See `BlobStore`. A server that ignores the condition reports every object as new.

        After a failed PUT, the next PUT of that key is unconditional: the object may exist since the
        failed one, so the answer would not be meaningful, and one request is faster than two.
        """
        path = self._path(key)
        try:
            # One at a time: in some stores, conditional PUTs of one key block each other for seconds.
            async with self._lock_key(key):
                with self._translate_errors("write to"):
                    outcome = await self._put(path, data, conditional=key not in self._failed)
        except BaseException:
            self._failed.add(key)
            raise
        self._failed.discard(key)
        return _IS_NEW.get(outcome)

    @contextlib.asynccontextmanager
    async def _lock_key(self, key: str) -> AsyncIterator[None]:
        """Hold the lock of a key, so that this event loop sends one PUT of it at a time."""
        place = (asyncio.get_running_loop(), key)
        lock, waiting = self._turns.get(place, (asyncio.Lock(), 0))
        self._turns[place] = (lock, waiting + 1)
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._turns.pop(place)
            if waiting > 1:
                self._turns[place] = (lock, waiting - 1)

    async def _put(self, path: str, data: bytes, *, conditional: bool) -> _Created:
        """Write an object, also over an existing one: sweeps rely on the time of the last write."""
        seconds = _get_timeout_seconds(len(data))
        outcome = _Created.UNKNOWN
        async with asyncio.timeout(seconds) as deadline:
            if conditional and self._knows_create:
                outcome = await self._create(path, data)
            if outcome is _Created.NEW:
                return outcome
            if outcome is not _Created.UNKNOWN:
                # The store has answered, so it is up: the second request gets its own timeout.
                deadline.reschedule(asyncio.get_running_loop().time() + seconds)
            await self._writes.put_async(path, data, use_multipart=False)
        if outcome is _Created.REFUSED:
            self._knows_create = False  # It accepted the same PUT without the condition.
        return outcome

    async def _create(self, path: str, data: bytes) -> _Created:
        """Write an object on the condition that it does not exist."""
        try:
            await self._creates.put_async(path, data, use_multipart=False, mode="create")
        except (AlreadyExistsError, PreconditionError):
            return _Created.EXISTS
        except (NotSupportedError, NotImplementedError):
            # obstore raises the second where AWS_CONDITIONAL_PUT=disabled.
            return _Created.REFUSED
        except BaseError as error:
            if is_unknown_condition(error):
                return _Created.REFUSED
            if is_retryable(error):
                return _Created.UNKNOWN  # A plain PUT follows, which obstore retries itself.
            raise
        return _Created.NEW

    async def put_file(self, key: str, path: Path) -> None:
        """See `FileUploader`. The parts become an object when all of them are uploaded."""
        to = self._path(key)
        size_bytes = (await asyncio.to_thread(path.stat)).st_size
        with self._translate_errors("write to"):
            async with asyncio.timeout(_get_timeout_seconds(size_bytes)):
                await self._writes.put_async(
                    to, path, chunk_size=_PART_BYTES, max_concurrency=_PARTS_MAX
                )

    async def get(self, key: str) -> bytes:
        """See `BlobStore`."""
        return await self._get(key, None)

    async def get_bounded(self, key: str, bytes_max: int) -> bytes:
        """See `BoundedReader`."""
        return await self._get(key, bytes_max)

    async def _get(self, key: str, bytes_max: int | None) -> bytes:
        path = self._path(key)
        with self._translate_errors("read from", key):
            async with asyncio.timeout(_get_timeout_seconds(0)):
                result = await self._reads.get_async(path)
            size = result.meta["size"]
            if bytes_max is not None:
                check_object_size(key, size, bytes_max)
            async with asyncio.timeout(_get_timeout_seconds(size)):
                data = (await result.bytes_async()).to_bytes()
            if len(data) != size:
                raise ConnectionError
            return data

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `BlobStore`."""
        path = self._path(key)
        with self._translate_errors("read from", key):
            try:
                async with asyncio.timeout(_get_timeout_seconds(min(length, OBJECT_BYTES_MAX))):
                    # HTTP has no empty range. A read of one byte shows whether the object exists.
                    data = await self._reads.get_range_async(
                        path, start=start, length=max(length, 1)
                    )
            except BaseError as error:
                if is_beyond_end(error):
                    return b""
                raise
            return data.to_bytes()[:length]

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        """See `BlobStore`. Foreign objects whose names are not valid keys are skipped."""
        async for info in self._list(prefix, None):
            yield info

    @property
    def lists_ranges(self) -> bool:
        """See `RangeLister`."""
        return self._lists_ranges

    async def list_range(
        self, folder: str, after: str, before: str
    ) -> AsyncGenerator[BlobInfo, None]:
        """See `RangeLister`."""
        last = after
        async for info in self._list(folder, after):
            if info.key <= last:
                raise OutOfOrder
            if info.key >= before:
                return
            last = info.key
            yield info

    async def _list(self, prefix: str, after: str | None) -> AsyncIterator[BlobInfo]:
        # A prefix with one more character must be a valid key. obstore lists whole segments only, so
        # the rest of the prefix is filtered here.
        check_key(f"{prefix}x")
        folder = self._prefix + prefix.rpartition("/")[0]
        offset = None if after is None else self._prefix + after
        pages = aiter(self._reads.list(folder, offset=offset, chunk_size=_LIST_PAGE))
        while True:
            with self._translate_errors("list"):
                async with asyncio.timeout(_get_timeout_seconds(0)):
                    page = await anext(pages, None)
            if page is None:
                return
            for found in page:
                path, key = found["path"], found["path"][len(self._prefix) :]
                if path.startswith(self._prefix + prefix) and _is_key(key):
                    modified_ms = int(found["last_modified"].timestamp() * 1000)
                    yield BlobInfo(key, found["size"], modified_ms)

    async def delete(self, keys: Iterable[str]) -> None:
        """See `BlobStore`."""
        paths = [self._path(key) for key in keys]
        step = _DELETE_BATCH if self._bulk_delete else _DELETE_CONCURRENCY
        for first in range(0, len(paths), step):
            batch = paths[first : first + step]
            with self._translate_errors("delete from"):
                async with asyncio.timeout(_get_timeout_seconds(0)):
                    if self._bulk_delete:
                        await self._reads.delete_async(batch)
                    else:
                        await _await_all(map(self._delete_one, batch))

    async def _delete_one(self, path: str) -> None:
        try:
            await self._reads.delete_async(path)
        except FileNotFoundError as error:
            if describe_fault(error) is NO_BUCKET:
                raise

    def _path(self, key: str) -> str:
        return self._prefix + check_key(key)

    @contextlib.contextmanager
    def _translate_errors(self, action: str, key: str | None = None) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if key is None or describe_fault(error) is NO_BUCKET:
                raise self._error(StoreUnavailable, action, NO_BUCKET) from error
            raise BlobMissing(
                f"blob {key!r} is not in {self!r}. Restore it from an older version or a backup of "
                "that bucket; waiting work then continues by itself."
            ) from None
        except (BaseError, OSError) as error:
            fault = describe_fault(error)
            raise self._error(StoreUnavailable, action, fault) from get_safe_cause(error)

    def _error(
        self, kind: type[ConfigError | StoreError], action: str, fault: Fault
    ) -> ConfigError | StoreError:
        return kind(f"cannot {action} the blob store {self!r}: {fault.what}. {fault.remedy}")


def _get_timeout_seconds(size_bytes: int) -> float:
    return _ANSWER_SECONDS_MAX + size_bytes / STORE_BYTES_PER_SECOND_MIN


def _is_key(key: str) -> bool:
    try:
        return bool(check_key(key))
    except InvalidKey:
        return False


async def _await_all(calls: Iterable[Coroutine[None, None, None]]) -> None:
    """Wait for all calls, then raise the first error, so that no call is left running."""
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        if outcome is not None:
            raise outcome


# Opening a bucket. botocore finds the credentials and the endpoint of S3 (`storage/aws.py`), and
# obstore transfers the bytes. obstore gets all settings explicitly and reads none from the
# environment, so the two always agree.


def open_bucket(url: str) -> BucketBlobStore:
    """Open the bucket at an `s3://`, `gs://` or `az://` URL, and check that it can be listed."""
    place = parse_bucket_url(url)
    try:
        store = {"s3": _open_s3, "gs": _open_gs, "az": _open_az}[place.scheme](place)
    except (BaseError, ValueError) as error:
        raise describe_setup_failure(place, error) from None
    store.check()
    return store


def _open_s3(place: BucketURL) -> BucketBlobStore:
    from everlong.storage.aws import read_aws_access  # Imports botocore: 0.2 s.

    access = read_aws_access(place)

    def client(options: "ClientConfig", retries: "RetryConfig") -> S3Store:
        return S3Store(
            place.bucket,
            config=access.config,
            client_options=options,
            retry_config=retries,
            credential_provider=access.keys,
        )

    return _build_store(place, client, access.authorities)


def _open_gs(place: BucketURL) -> BucketBlobStore:
    names = {"endpoint": "base_url", "service_account": "service_account"}
    config: Any = {names[name]: value for name, value in place.options.items()}

    def client(options: "ClientConfig", retries: "RetryConfig") -> GCSStore:
        return GCSStore(place.bucket, config=config, client_options=options, retry_config=retries)

    return _build_store(place, client)


def _open_az(place: BucketURL) -> BucketBlobStore:
    names = {"endpoint": "endpoint", "account": "account_name"}
    config: Any = {names[name]: value for name, value in place.options.items()}

    def client(options: "ClientConfig", retries: "RetryConfig") -> AzureStore:
        return AzureStore(place.bucket, config=config, client_options=options, retry_config=retries)

    return _build_store(place, client)


def _build_store(
    place: BucketURL,
    client: "Callable[[ClientConfig, RetryConfig], Client]",
    authorities: bytes | None = None,
) -> BucketBlobStore:
    plain = place.options.get("endpoint", "").startswith("http://")
    options = build_client_options(allow_http=plain, root_certificate=authorities)
    return BucketBlobStore(
        str(place),
        place.prefix,
        reads=client(add_read_timeout(options), build_retry_options()),
        writes=client(options, build_retry_options()),
        # A further client takes about 10 ms to create.
        creates=client(options, build_retry_options(retries_max=0)),
        # Only S3 ignores missing keys in a bulk delete.
        bulk_delete=place.scheme == "s3",
        # S3 and Google list in UTF-8 order from any key on. S3 Express (directory buckets) lists in no
        # order.
        lists_ranges=place.scheme in ("s3", "gs") and not place.bucket.endswith("--x-s3"),
    )
