"""What the URL of a bucket says: `s3://bucket/prefix?endpoint=...`, and `gs://` and `az://` alike.

A URL ends up in logs and process lists. So credentials in one are refused, and no error repeats
anything of its query.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from everlong.errors import ConfigError, InvalidKey
from everlong.storage.base import KEY_CHARS_MAX, checked_key
from everlong.storage.buckets import (
    BucketBlobStore,
    client_options,
    read_options,
    retry_options,
)

if TYPE_CHECKING:  # These are not there at run time.
    from obstore.store import ClientConfig, RetryConfig

    from everlong.storage.buckets import Client


# What each scheme understands after the `?`. The second half of those of S3 goes to obstore as it is.
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
    """A checked URL. `str` of it leaves out the query."""

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
    """Take a bucket's URL apart, or raise `ConfigError` without repeating what may be secret."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise _credentials_refused(parts.scheme)
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
    """Return the error for a store that a vendor's package refuses to set up.

    The vendor's own text is left out: it quotes the values of options.
    """
    return ConfigError(
        f"the blob store {place} cannot be set up: an option of its URL or a variable of the "
        f"environment is wrong or missing ({type(error).__name__}). docs/deploy.md lists them."
    )


def _prefix(parts: SplitResult) -> str:
    prefix = parts.path.strip("/")
    try:
        if prefix:
            checked_key(prefix)
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
            raise _credentials_refused(parts.scheme)
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
    except ValueError:  # An IPv6 address or a port that is none.
        sound = False
    if not sound or parts.query or parts.fragment:
        raise ConfigError(
            f"the endpoint of {place} is not a URL. Write endpoint=https://host:port, or http:// "
            "where nobody else can listen"
        )
    if "@" in parts.netloc:
        raise _credentials_refused(place.scheme)


def _credentials_refused(scheme: str) -> ConfigError:
    return ConfigError(
        "the store URL seems to hold credentials, and URLs end up in logs. Take them out and put "
        f"them into {_CREDENTIALS[scheme]}."
    )


# From the URL of a bucket to a store that has been checked.
#
# botocore finds the credentials and the endpoint of S3 (`storage/aws.py`). obstore moves the bytes. It
# gets all settings explicitly, so it reads none from the environment, and the two agree.


def open_bucket(url: str) -> BucketBlobStore:
    """Open the bucket at `s3://`, `gs://` or `az://`, and check that it is there for us."""
    place = parse_bucket_url(url)
    try:
        store = {"s3": _open_s3, "gs": _open_gs, "az": _open_az}[place.scheme](place)
    except (BaseError, ValueError) as error:
        raise describe_setup_failure(place, error) from None
    store.check()
    return store


def _open_s3(place: BucketURL) -> BucketBlobStore:
    from everlong.storage.aws import read_aws_access  # Here: it imports botocore.

    access = read_aws_access(place)

    def client(options: "ClientConfig", retries: "RetryConfig") -> S3Store:
        return S3Store(
            place.bucket,
            config=access.config,
            client_options=options,
            retry_config=retries,
            credential_provider=access.keys,
        )

    return _store(place, client, access.authorities)


def _open_gs(place: BucketURL) -> BucketBlobStore:
    names = {"endpoint": "base_url", "service_account": "service_account"}
    config: Any = {names[name]: value for name, value in place.options.items()}

    def client(options: "ClientConfig", retries: "RetryConfig") -> GCSStore:
        return GCSStore(place.bucket, config=config, client_options=options, retry_config=retries)

    return _store(place, client)


def _open_az(place: BucketURL) -> BucketBlobStore:
    names = {"endpoint": "endpoint", "account": "account_name"}
    config: Any = {names[name]: value for name, value in place.options.items()}

    def client(options: "ClientConfig", retries: "RetryConfig") -> AzureStore:
        return AzureStore(place.bucket, config=config, client_options=options, retry_config=retries)

    return _store(place, client)


def _store(
    place: BucketURL,
    client: "Callable[[ClientConfig, RetryConfig], Client]",
    authorities: bytes | None = None,
) -> BucketBlobStore:
    plain = place.options.get("endpoint", "").startswith("http://")
    options = client_options(allow_http=plain, root_certificate=authorities)
    return BucketBlobStore(
        str(place),
        place.prefix,
        reads=client(read_options(options), retry_options()),
        writes=client(options, retry_options()),
        # One more client takes about 10 ms to make.
        creates=client(options, retry_options(retries_max=0)),
        # Only S3 passes over what is not there.
        bulk_delete=place.scheme == "s3",
        # S3 and Google list in the order of UTF-8, from any key on; S3 Express (directory buckets) lists
        # in no order.
        lists_ranges=place.scheme in ("s3", "gs") and not place.bucket.endswith("--x-s3"),
    )
