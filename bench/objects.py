"""Objects of a bucket or a directory, and the SDK's own storage driver on top of them.

The SDK's driver has a client for aioboto3, which cannot be installed together with our boto3. So this
module has a client over obstore, which Everlong's own S3 store uses too.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import obstore
from obstore.store import LocalStore, ObjectStore, S3Store
from temporalio.contrib.aws.s3driver import S3StorageDriverClient

from bench import worker_log


@dataclasses.dataclass(frozen=True)
class Place:
    """Where one variant of the benchmark stores its objects."""

    url: str
    """URL for `open_store`: `file:///dir`, or `s3://bucket/prefix?endpoint=http://...`."""
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    """Credentials, as environment variables."""


def open_objects(place: Place) -> ObjectStore:
    """Open the place without Everlong."""
    parts = urlsplit(place.url)
    if parts.scheme == "file":
        return LocalStore(Path(unquote(parts.path)), mkdir=True)
    options = parse_qs(parts.query)
    return S3Store(
        parts.netloc,
        prefix=parts.path.strip("/"),
        endpoint=options["endpoint"][0],
        region=place.environ.get("AWS_REGION", "us-east-1"),
        access_key_id=place.environ["AWS_ACCESS_KEY_ID"],
        secret_access_key=place.environ["AWS_SECRET_ACCESS_KEY"],
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


async def count_stored(place: Place) -> tuple[int, int]:
    """Return the number of objects, and their bytes."""
    sizes: list[int] = []
    async for batch in obstore.list(open_objects(place)):
        sizes += [meta["size"] for meta in batch if ".partial" not in meta["path"]]
    return len(sizes), sum(sizes)


class ObstoreClient(S3StorageDriverClient):
    """The client for the SDK's `S3StorageDriver`. It logs its requests."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def put_object(self, *, bucket: str, key: str, data: bytes) -> None:
        """See `S3StorageDriverClient`."""
        await obstore.put_async(self._objects, key, data)
        worker_log.write("put", len(data))

    async def object_exists(self, *, bucket: str, key: str) -> bool:
        """See `S3StorageDriverClient`."""
        worker_log.write("head")
        try:
            await obstore.head_async(self._objects, key)
        except FileNotFoundError:
            return False
        return True

    async def get_object(self, *, bucket: str, key: str) -> bytes:
        """See `S3StorageDriverClient`."""
        answer = await obstore.get_async(self._objects, key)
        data = bytes(await answer.bytes_async())
        worker_log.write("get", len(data))
        return data
