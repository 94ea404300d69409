"""The SDK's own ExternalStorage with its S3 driver, on a bucket that only counts objects and bytes."""

import dataclasses

from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.contrib.aws.s3driver import S3StorageDriver, S3StorageDriverClient
from temporalio.converter import DataConverter, ExternalStorage


class CountingClient(S3StorageDriverClient):
    """A client for the driver that keeps the sizes of objects and discards their bytes."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}

    async def put_object(self, *, bucket: str, key: str, data: bytes) -> None:
        """See `S3StorageDriverClient`."""
        self.sizes[key] = len(data)

    async def object_exists(self, *, bucket: str, key: str) -> bool:
        """See `S3StorageDriverClient`."""
        return key in self.sizes

    async def get_object(self, *, bucket: str, key: str) -> bytes:
        """See `S3StorageDriverClient`."""
        raise NotImplementedError("the benchmark only writes")


class SdkStorage:
    """Stores payloads as the SDK does with its defaults: each above 256 KiB whole, uncompressed."""

    def __init__(self) -> None:
        self._client = CountingClient()
        driver = S3StorageDriver(self._client, bucket="bench")
        self._converter = dataclasses.replace(
            DataConverter.default, external_storage=ExternalStorage(drivers=[driver])
        )
        self.history_bytes = 0
        """Bytes of payloads that stay inline, and of references."""

    async def send(self, payload: Payload) -> None:
        """Encode a payload."""
        [encoded] = await self._converter.encode([RawValue(payload)])
        self.history_bytes += encoded.ByteSize()

    @property
    def objects(self) -> int:
        """Objects in the bucket."""
        return len(self._client.sizes)

    @property
    def stored_bytes(self) -> int:
        """Bytes in the bucket."""
        return sum(self._client.sizes.values())
