"""`ClientPlugin`: the plugin of a client that runs no worker, such as a command's.

It has the codec and the client's interceptors of `EverlongPlugin`, and imports nothing of a worker: that
takes 0.3 s of CPU.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from temporalio.client import Client, ClientConfig, Plugin
from temporalio.converter import PayloadCodec
from temporalio.service import ConnectConfig, ServiceClient

from everlong.client.packs import PackSource
from everlong.codecs import EverlongCodec
from everlong.codecs.composition import check_order, check_outer, configure_converter
from everlong.interceptors.send_time import SendTimeInterceptor
from everlong.interceptors.thread_ids import ThreadIdInterceptor
from everlong.storage import BlobStore
from everlong.storage.encryption_keys import KeySource
from everlong.storage.pack_store import open_packs
from everlong.telemetry import Telemetry
from everlong.telemetry.metrics import record_store_call
from everlong.versions import get_sdk_version, warn_of_untested_sdk


class ClientPlugin(PackSource, Plugin):
    """Decodes and encodes payloads, and checks the ids of new threads. See `EverlongPlugin`."""

    def __init__(
        self,
        *,
        store: str | BlobStore,
        keys: KeySource | None,
        accept_unsealed: bool,
        outer_codec: PayloadCodec | None,
        cache_dir: str | None,
        inline_bytes_max: int,
        encoder_bytes_max: int,
        decode_bytes_max: int,
    ) -> None:
        warn_of_untested_sdk(get_sdk_version())
        if outer_codec is not None:
            check_outer(outer_codec, has_keys=keys is not None)
        telemetry = Telemetry()
        self.packs = open_packs(
            store,
            keys=keys,
            accept_unsealed=accept_unsealed,
            cache_dir=cache_dir,
            on_call=partial(record_store_call, telemetry.meters),
        )
        self._codec = EverlongCodec(
            self.packs,
            inline_bytes_max=inline_bytes_max,
            encoder_bytes_max=encoder_bytes_max,
            decode_bytes_max=decode_bytes_max,
            spans=telemetry.spans,
        )
        self._codec.export_metrics(telemetry.meters)
        self._outer_codec = outer_codec

    def configure_client(self, config: ClientConfig) -> ClientConfig:
        """See `temporalio.client.Plugin`."""
        config["data_converter"] = configure_converter(
            config["data_converter"], self._codec, self._outer_codec
        )
        config["interceptors"] = [
            *config["interceptors"],
            SendTimeInterceptor(),
            ThreadIdInterceptor(),
        ]
        return config

    async def connect_service_client(
        self,
        config: ConnectConfig,
        next: Callable[[ConnectConfig], Awaitable[ServiceClient]],  # noqa: A002
    ) -> ServiceClient:
        """See `temporalio.client.Plugin`."""
        return await next(config)

    def check_client(self, client: Client) -> None:
        """See `PackSource`."""
        check_order(client.data_converter.payload_codec)
