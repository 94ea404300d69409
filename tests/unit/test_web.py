import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from google.protobuf import json_format
from temporalio.api.common.v1 import Payload, Payloads

from everlong.admin import web
from everlong.admin.web import check_exposure, create_app
from everlong.codecs import EverlongCodec
from everlong.codecs.codec import INLINE_ENCODING
from everlong.errors import ConfigError
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.objects import seal

BIG = Payload(metadata={"encoding": b"json/plain"}, data=hashlib.shake_256(b"noise").digest(50_000))
ORIGIN = "http://127.0.0.1:8233"


@asynccontextmanager
async def browser(
    store: MemoryBlobStore, *, token: str = "", host: str = "127.0.0.1"
) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(store, token=token, cors_origins=[ORIGIN]))
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}:8234") as client:
        yield client


def as_json(*payloads: Payload) -> dict[str, object]:
    return json_format.MessageToDict(Payloads(payloads=payloads))


def from_json(response: httpx.Response) -> list[Payload]:
    assert response.status_code == 200, response.text
    return list(json_format.Parse(response.content, Payloads()).payloads)


async def test_decode_shows_what_the_worker_encoded() -> None:
    store = MemoryBlobStore()
    encoded = await EverlongCodec(store).encode([BIG, Payload(data=b"x")])
    async with browser(store) as client:
        # The Temporal UI adds this parameter.
        path = "/decode?preserveStorageRefs=true"
        assert from_json(await client.post(path, json=as_json(*encoded))) == [
            BIG,
            Payload(data=b"x"),
        ]


async def test_encode_is_what_a_worker_decodes() -> None:
    store = MemoryBlobStore()
    async with browser(store) as client:
        encoded = from_json(await client.post("/encode", json=as_json(BIG)))
    assert await EverlongCodec(store).decode(encoded) == [BIG]


async def test_health_needs_no_token() -> None:
    async with browser(MemoryBlobStore(), token="t") as client:
        assert (await client.get("/healthz")).json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("header", "status"), [("", 401), ("Bearer x", 401), ("t", 401), ("Bearer t", 200)]
)
async def test_a_token_is_asked_for_where_there_is_one(header: str, status: int) -> None:
    async with browser(MemoryBlobStore(), token="t", host="everlong.internal") as client:
        headers = {"authorization": header}
        response = await client.post("/decode", json=as_json(BIG), headers=headers)
        assert response.status_code == status


async def test_only_the_named_origin_may_read_from_a_browser() -> None:
    async with browser(MemoryBlobStore()) as client:
        for origin, allowed in ((ORIGIN, True), ("http://evil.example", False)):
            response = await client.options(
                "/decode",
                headers={
                    "origin": origin,
                    "access-control-request-method": "POST",
                    "access-control-request-headers": "content-type,x-namespace",
                },
            )
            assert (response.headers.get("access-control-allow-origin") == origin) is allowed


async def test_a_page_that_rebinds_its_name_to_loopback_is_refused() -> None:
    async with browser(MemoryBlobStore(), host="evil.example") as client:
        assert (await client.post("/decode", json=as_json(BIG))).status_code == 400


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"{", "application/json", 400),
        (b'{"payloads": 7}', "application/json", 400),
        (b"null", "application/json", 400),
        (b"[" * 100_000, "application/json", 413),
        (b"\xff\xfe", "application/json", 400),
        (b"{}", "text/plain", 415),
        (b'{"payloads": [{"data": "' + b"A" * 2000 + b'"}]}', "application/json", 413),
    ],
)
async def test_bad_requests_are_refused(
    body: bytes, content_type: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "REQUEST_BYTES_MAX", 1000)
    async with browser(MemoryBlobStore()) as client:
        response = await client.post(
            "/decode", content=body, headers={"content-type": content_type}
        )
        assert response.status_code == status


async def test_payloads_that_would_decode_to_too_much_are_refused_before_they_are_decoded() -> None:
    zeros = Payload(data=bytes((1 << 20) - 6))
    bomb = Payload(metadata={"encoding": INLINE_ENCODING}, data=seal(zeros.SerializeToString()))
    assert len(bomb.data) < 200
    async with browser(MemoryBlobStore()) as client:
        fits = await client.post("/decode", json=as_json(*[bomb] * 64))
        refused = await client.post("/decode", json=as_json(*[bomb] * 65))
    assert (fits.status_code, refused.status_code) == (200, 413)


async def test_a_missing_blob_is_told_not_hidden() -> None:
    store = MemoryBlobStore()
    [encoded] = await EverlongCodec(store).encode([BIG])
    async with browser(MemoryBlobStore()) as client:
        response = await client.post("/decode", json=as_json(encoded))
    assert response.status_code == 422
    assert "BlobMissing" in response.text


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_loopback_needs_no_token(host: str) -> None:
    check_exposure(host, token="", allow_anonymous=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_beyond_loopback_a_token_is_needed(host: str) -> None:
    with pytest.raises(ConfigError, match="EVERLONG_TOKEN"):
        check_exposure(host, token="", allow_anonymous=False)
    check_exposure(host, token="t", allow_anonymous=False)
    check_exposure(host, token="", allow_anonymous=True)
