"""From the URL of a bucket to a store that has been checked.

botocore says who we are and where S3 is (`storage/aws.py`). obstore moves the bytes; what it would read
from the environment by itself is given to it, so the two agree.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from everlong.storage.bucket_urls import BucketURL, describe_setup_failure, parse_bucket_url
from everlong.storage.buckets import (
    BucketBlobStore,
    client_options,
    read_options,
    retry_options,
)

if TYPE_CHECKING:  # These are not there at run time.
    from obstore.store import ClientConfig, RetryConfig

    from everlong.storage.buckets import Client


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
