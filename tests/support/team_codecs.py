"""Codecs of a team's own, and ways to combine them with Everlong's."""

import dataclasses
import os
from collections.abc import Sequence

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter, PayloadCodec
from temporalio.plugin import SimplePlugin

ENCRYPTED = b"binary/encrypted"


class Cipher(PayloadCodec):
    """Encrypts as the SDK's sample does: a random nonce for each payload."""

    def __init__(self) -> None:
        self._key = AESGCM(b"k" * 32)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        sealed = []
        for each in payloads:
            nonce = os.urandom(12)
            data = nonce + self._key.encrypt(nonce, each.SerializeToString(), None)
            sealed.append(Payload(metadata={"encoding": ENCRYPTED}, data=data))
        return sealed

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload.FromString(self._key.decrypt(each.data[:12], each.data[12:], None))
            if each.metadata["encoding"] == ENCRYPTED
            else each
            for each in payloads
        ]


class Marking(PayloadCodec):
    """Codec that only marks payloads: equal input gives equal output."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(metadata={"encoding": b"test/marked"}, data=each.SerializeToString())
            for each in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload.FromString(each.data) if each.metadata["encoding"] == b"test/marked" else each
            for each in payloads
        ]


class Chain(PayloadCodec):
    """Applies codecs one after another, the first one first when encoding."""

    def __init__(self, *codecs: PayloadCodec) -> None:
        self._codecs = list(codecs)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        for each in self._codecs:
            payloads = await each.encode(payloads)
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        for each in reversed(self._codecs):
            payloads = await each.decode(payloads)
        return list(payloads)


class CodecPlugin(SimplePlugin):
    """Plugin that wraps a codec around the one that it finds."""

    def __init__(self, codec: PayloadCodec, *, replaces: bool = False) -> None:
        def changed(converter: DataConverter | None) -> DataConverter:
            converter = converter or DataConverter.default
            found = converter.payload_codec
            around = codec if found is None or replaces else Chain(found, codec)
            return dataclasses.replace(converter, payload_codec=around)

        super().__init__("test.CodecPlugin", data_converter=changed)


class Xor(PayloadCodec):
    """Codec without keys, for `everlong serve --codec tests.support.team_codecs:make_xor`."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(metadata={"encoding": b"binary/xor"}, data=_xor(each.SerializeToString()))
            for each in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload.FromString(_xor(each.data))
            if each.metadata["encoding"] == b"binary/xor"
            else each
            for each in payloads
        ]


def make_xor() -> PayloadCodec:
    return Xor()


def make_nothing() -> None:
    """Factory that forgets to return its codec."""


def make_trouble() -> PayloadCodec:
    raise OSError("the key service does not answer, and this is a secret")


def _xor(data: bytes) -> bytes:
    return bytes(each ^ 0x5A for each in data)
