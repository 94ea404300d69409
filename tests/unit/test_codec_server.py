"""Routes of the codec server, without a network: their responses and refusals."""

import asyncio
import base64
import hashlib
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from google.protobuf import json_format
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.sdk.v1.external_storage_pb2 import ExternalStorageReference
from temporalio.converter import PayloadCodec

from everlong.admin.web import check_exposure, create_codec_app
from everlong.admin.web import codec_server as web
from everlong.codecs import EverlongCodec
from everlong.codecs.payloads import INLINE_ENCODING
from everlong.codecs.refs import is_ref
from everlong.errors import ConfigError, StoreUnavailable
from everlong.storage.encryption_keys import Keyring
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.objects import build_object
from everlong.storage.pack_store import PackStore
from tests.support.fake_stores import CountingStore
from tests.support.team_codecs import Cipher, Xor


def noise(size_bytes: int) -> Payload:
    """A payload that no compression keeps in history."""
    data = hashlib.shake_256(b"noise").digest(size_bytes)
    return Payload(metadata={"encoding": b"json/plain"}, data=data)


BIG = noise(50_000)
HUGE = noise(web.SHOWN_BYTES_MAX + 1)
SMALL = Payload(data=b"x")
ORIGIN = "http://127.0.0.1:8233"
# As the CLI asks, as the docs ask for each namespace, behind a proxy, and as the Temporal UI asks.
PATHS = ["/{}", "/default/{}", "/codec/of/default/{}", "/{}?preserveStorageRefs=true"]
ROUTES = ["/encode", "/decode", "/download", "/default/decode"]


class DownStore(MemoryBlobStore):
    async def get(self, key: str) -> bytes:
        raise StoreUnavailable("the store is down for a test")


class SilentStore(MemoryBlobStore):
    async def get(self, key: str) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")


@asynccontextmanager
async def browser(
    store: MemoryBlobStore | PackStore,
    *,
    token: str = "",
    host: str = "127.0.0.1",
    inner: PayloadCodec | None = None,
) -> AsyncIterator[httpx.AsyncClient]:
    app = create_codec_app(store, token=token, cors_origins=[ORIGIN], inner=inner)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}:8234") as client:
        yield client


def as_json(*payloads: Payload) -> dict[str, object]:
    return json_format.MessageToDict(Payloads(payloads=payloads))


def from_json(response: httpx.Response) -> list[Payload]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return list(json_format.Parse(response.content, Payloads()).payloads)


@pytest.mark.parametrize("path", PATHS)
async def test_decode_returns_the_values_that_the_worker_encoded(path: str) -> None:
    store = MemoryBlobStore()
    encoded = await EverlongCodec(store).encode([BIG, SMALL])
    async with browser(store) as client:
        response = await client.post(path.format("decode"), json=as_json(*encoded))
    assert from_json(response) == [BIG, SMALL]


@pytest.mark.parametrize("path", PATHS)
async def test_a_worker_decodes_the_output_of_encode(path: str) -> None:
    store = MemoryBlobStore()
    async with browser(store) as client:
        headers = {"x-namespace": "default"}
        response = await client.post(path.format("encode"), json=as_json(BIG), headers=headers)
    [encoded] = from_json(response)
    assert is_ref(encoded)
    assert await EverlongCodec(store).decode([encoded]) == [BIG]


@pytest.mark.parametrize("path", PATHS)
async def test_download_returns_the_whole_value_of_a_ref(path: str) -> None:
    store = MemoryBlobStore()
    encoded = await EverlongCodec(store).encode([HUGE, BIG])
    async with browser(store) as client:
        response = await client.post(path.format("download"), json=as_json(*encoded))
    assert from_json(response) == [HUGE, BIG]


async def test_the_cli_gets_whole_values_however_large() -> None:
    store = MemoryBlobStore()
    encoded = await EverlongCodec(store).encode([HUGE])
    async with browser(store) as client:
        for query in ("", "?preserveStorageRefs=false", "?preserveStorageRefs="):
            response = await client.post(f"/decode{query}", json=as_json(*encoded))
            assert from_json(response) == [HUGE]


async def test_the_ui_gets_a_button_for_a_large_value_and_no_blob_is_read() -> None:
    store = CountingStore()
    large, small = await EverlongCodec(store).encode([HUGE, BIG])
    async with browser(store) as client:
        response = await client.post(
            "/decode?preserveStorageRefs=true", json=as_json(large, small, SMALL)
        )
        placeholder, *shown = from_json(response)
        assert shown == [BIG, SMALL]
        assert store.gets == 1
        # By these the UI knows what it may download, and how large it is.
        assert (
            placeholder.metadata["messageType"] == b"temporal.api.sdk.v1.ExternalStorageReference"
        )
        [external] = placeholder.external_payloads
        assert external.size_bytes == len(HUGE.data)
        # And this is what it shows. It parses what it gets as JSON, and metadata as UTF-8.
        reference = json_format.Parse(placeholder.data, ExternalStorageReference())
        assert reference.driver_name == "everlong"
        assert reference.claim_data["size"] == "131,073 bytes"
        assert await store.get(reference.claim_data["key"])
        assert all(text.decode() for text in placeholder.metadata.values())
        # A client that sends back the placeholder from /decode gets the value too.
        for path in ("/download", "/decode"):
            assert from_json(await client.post(path, json=as_json(placeholder))) == [HUGE]


@pytest.mark.parametrize(
    "payload",
    [
        SMALL,
        Payload(metadata={"encoding": INLINE_ENCODING}, data=build_object(b"")),
        Payload(metadata={"everlong-ref": base64.b64encode(SMALL.SerializeToString())}),
        Payload(metadata={"everlong-ref": b"*"}),
        Payload(metadata={"everlong-ref": base64.b64encode(b"\xff\xff")}),
    ],
)
async def test_only_refs_are_downloaded(payload: Payload) -> None:
    async with browser(MemoryBlobStore()) as client:
        response = await client.post("/download", json=as_json(payload))
    # The UI takes a 404 for a codec server that has no such route.
    assert response.status_code == 400


async def test_health_needs_no_token() -> None:
    async with browser(MemoryBlobStore(), token="t") as client:
        assert (await client.get("/healthz")).json() == {"status": "ok"}


@pytest.mark.guarantee(87)
@pytest.mark.parametrize(
    ("header", "status"), [("", 401), ("Bearer x", 401), ("t", 401), ("Bearer t", 200)]
)
@pytest.mark.parametrize("path", ROUTES)
async def test_a_configured_token_is_required(
    path: str, header: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryBlobStore()
    [ref] = await EverlongCodec(store).encode([BIG])
    async with browser(store, token="t", host="everlong.internal") as client:
        response = await client.post(path, json=as_json(ref), headers={"authorization": header})
    assert response.status_code == status
    # The CLI does not show the refusal, so the server logs it.
    route = path.rpartition("/")[2]
    assert (f"/{route} answered 401" in caplog.text) is (status == 401)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "OPTIONS"])
async def test_payload_routes_accept_only_post(method: str, path: str) -> None:
    async with browser(MemoryBlobStore()) as client:
        assert (await client.request(method, path)).status_code == 405


def preflight(origin: str, **headers: str) -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type,x-namespace",
        **headers,
    }


@pytest.mark.guarantee(87)
@pytest.mark.parametrize("path", ROUTES)
async def test_only_the_named_origin_may_read_from_a_browser(path: str) -> None:
    async with browser(MemoryBlobStore()) as client:
        for origin, allowed in ((ORIGIN, True), ("http://evil.example", False), ("null", False)):
            response = await client.options(path, headers=preflight(origin))
            assert (response.status_code == 200) is allowed
            assert (response.headers.get("access-control-allow-origin") == origin) is allowed
            # A browser hides even a refusal from a page that it does not name.
            response = await client.post(path, content=b"{", headers={"origin": origin})
            assert (response.headers.get("access-control-allow-origin") == origin) is allowed


async def test_cors_allows_the_headers_of_the_temporal_ui() -> None:
    """Its user's tokens, cookies, and all of it from another machine's page to this one."""
    headers = preflight(
        ORIGIN,
        **{
            "access-control-request-headers": "authorization,authorization-extras,content-type",
            "access-control-request-private-network": "true",
        },
    )
    async with browser(MemoryBlobStore(), token="t") as client:
        response = await client.options("/decode", headers=headers)
    assert response.status_code == 200, response.text
    assert response.headers["access-control-allow-credentials"] == "true"
    assert response.headers["access-control-allow-private-network"] == "true"


@pytest.mark.parametrize(
    "origin", ["*", "null", "", "127.0.0.1:8233", "http://a/", "http://A", "ftp://a", "http://*.a"]
)
def test_an_invalid_origin_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(ConfigError, match="is not a browser origin"):
        create_codec_app(MemoryBlobStore(), cors_origins=[origin])


@pytest.mark.parametrize("origin", ["https://ui.example.org", "http://[::1]:8233", ORIGIN])
def test_an_origin_is_scheme_host_and_port(origin: str) -> None:
    assert create_codec_app(MemoryBlobStore(), cors_origins=[origin]).routes


@pytest.mark.guarantee(87)
@pytest.mark.parametrize("path", ROUTES)
async def test_a_page_that_rebinds_its_name_to_loopback_is_refused(path: str) -> None:
    async with browser(MemoryBlobStore(), host="evil.example") as client:
        assert (await client.post(path, json=as_json(BIG))).status_code == 400
    async with browser(MemoryBlobStore(), host="localhost") as client:
        assert (await client.post("/decode", json=as_json(BIG))).status_code == 200


@pytest.mark.guarantee(88)
@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"{", "application/json", 400),
        (b"", "application/json", 400),
        (b'{"payloads": 7}', "application/json", 400),
        (b'{"payloads": [{"data": 7}]}', "application/json", 400),
        (b"null", "application/json", 400),
        (b"[" * 900, "application/json", 400),
        (b"[" * 100_000, "application/json", 413),
        (b"\xff\xfe", "application/json", 400),
        (b"{}", "text/plain", 415),
        (b"{}", "", 415),
        (b"{}", "application/x-www-form-urlencoded", 415),
        (b"{}", "Application/JSON; charset=utf-8", 200),
        (b'{"payloads": [{"data": "' + b"A" * 2000 + b'"}]}', "application/json", 413),
    ],
)
@pytest.mark.parametrize("path", ROUTES)
async def test_bad_requests_are_refused(
    path: str, body: bytes, content_type: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "REQUEST_BYTES_MAX", 1000)
    async with browser(MemoryBlobStore()) as client:
        response = await client.post(path, content=body, headers={"content-type": content_type})
    assert response.status_code == status


async def test_deeply_nested_json_is_refused() -> None:
    body = b'{"payloads": ' + b"[" * 1_000_000
    async with browser(MemoryBlobStore()) as client:
        headers = {"content-type": "application/json"}
        response = await client.post("/decode", content=body, headers=headers)
    assert response.status_code == 400


@pytest.mark.guarantee(88)
@pytest.mark.parametrize("query", ["", "?preserveStorageRefs=true"])
async def test_payloads_declared_too_large_are_refused_before_decoding(
    query: str,
) -> None:
    zeros = Payload(data=bytes((1 << 20) - 6))
    bomb = Payload(
        metadata={"encoding": INLINE_ENCODING}, data=build_object(zeros.SerializeToString())
    )
    assert len(bomb.data) < 200
    async with browser(MemoryBlobStore()) as client:
        fits = await client.post(f"/decode{query}", json=as_json(*[bomb] * 64))
        refused = await client.post(f"/decode{query}", json=as_json(*[bomb] * 65))
    assert (fits.status_code, refused.status_code) == (200, 413)


@pytest.mark.guarantee(88)
@pytest.mark.parametrize(
    ("path", "count", "status"),
    [
        ("/decode", 3, 200),
        ("/decode", 4, 413),
        ("/download", 3, 200),
        ("/download", 4, 413),
        # Placeholders are small: a page may show any number of them.
        ("/decode?preserveStorageRefs=true", 4, 200),
    ],
)
async def test_no_blob_is_read_for_refs_whose_sum_is_too_large(
    path: str, count: int, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "RESPONSE_BYTES_MAX", 3 * len(HUGE.data))
    store = CountingStore()
    [ref] = await EverlongCodec(store).encode([HUGE])
    async with browser(store) as client:
        response = await client.post(path, json=as_json(*[ref] * count))
    assert response.status_code == status
    assert (store.gets == 0) is (count == 4)


@pytest.mark.parametrize("path", ["/decode", "/download", "/decode?preserveStorageRefs=true"])
async def test_a_missing_blob_is_reported_in_the_value(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    secret = b'"a secret of the payload"'
    [encoded] = await EverlongCodec(MemoryBlobStore(), inline_bytes_max=0).encode(
        [Payload(metadata={"encoding": b"json/plain"}, data=secret)]
    )
    async with browser(MemoryBlobStore()) as client:
        response = await client.post(path, json=as_json(encoded))
    assert response.status_code == 422
    assert json.loads(response.text)["detail"].startswith("BlobMissing: ")
    [record] = caplog.records
    assert (record.name, record.levelno) == ("everlong.admin.web.codec_server", logging.WARNING)
    assert "BlobMissing" in record.message
    for text in (response.text, record.message):
        assert "secret" not in text
        assert base64.b64encode(encoded.data).decode() not in text


@pytest.mark.guarantee(89)
async def test_sealed_values_are_shown_only_with_the_keys() -> None:
    store = MemoryBlobStore()
    packs = PackStore(store, Keyring({"k1": bytes(range(32))}))
    encoded = await EverlongCodec(packs).encode([BIG, SMALL])
    async with browser(packs) as client:
        assert from_json(await client.post("/decode", json=as_json(*encoded))) == [BIG, SMALL]
    async with browser(store) as client:
        for payload in encoded:
            response = await client.post("/decode", json=as_json(payload))
            assert response.status_code == 422
            assert response.json()["detail"].startswith("KeyMissing: ")


async def test_a_damaged_ref_is_reported_in_the_value() -> None:
    [encoded] = await EverlongCodec(MemoryBlobStore()).encode([BIG])
    encoded.data = encoded.data[:-1]
    async with browser(MemoryBlobStore()) as client:
        for path in ("/decode", "/download", "/decode?preserveStorageRefs=true"):
            response = await client.post(path, json=as_json(encoded))
            assert response.status_code == 422
            assert response.json()["detail"].startswith("BlobCorrupt: ")


async def test_an_unavailable_store_gets_a_retryable_status() -> None:
    """The Temporal UI asks again after a 503, and not after a 4xx."""
    [encoded] = await EverlongCodec(MemoryBlobStore()).encode([BIG])
    async with browser(DownStore()) as client:
        response = await client.post("/decode", json=as_json(encoded))
    assert response.status_code == 503
    assert response.json()["detail"].startswith("StoreUnavailable: ")


@pytest.mark.guarantee(88)
async def test_requests_to_a_silent_store_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(web, "_CONVERT_SECONDS_MAX", 0.05)
    encoded = await EverlongCodec(MemoryBlobStore()).encode([BIG])
    async with browser(SilentStore()) as client:
        response = await client.post("/decode", json=as_json(*encoded))
    assert response.status_code == 503
    assert "did not answer" in response.json()["detail"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_loopback_needs_no_token(host: str) -> None:
    check_exposure(host, is_guarded=False, allow_anonymous=False)


@pytest.mark.guarantee(87)
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_beyond_loopback_a_token_is_needed(host: str) -> None:
    with pytest.raises(ConfigError, match="EVERLONG_TOKEN"):
        check_exposure(host, is_guarded=False, allow_anonymous=False)
    check_exposure(host, is_guarded=True, allow_anonymous=False)
    check_exposure(host, is_guarded=False, allow_anonymous=True)


@pytest.mark.parametrize("size_bytes", [10, 5000, 1_000_000])
async def test_values_of_a_teams_codec_are_decoded_and_encoded(size_bytes: int) -> None:
    store = MemoryBlobStore()
    given = Payload(
        metadata={"encoding": b"binary/plain"}, data=hashlib.shake_256(b"x").digest(size_bytes)
    )
    encoded = await EverlongCodec(store, inner=Xor()).encode([given])
    async with browser(store, inner=Xor()) as client:
        assert from_json(await client.post("/decode", json=as_json(*encoded))) == [given]
        again = from_json(await client.post("/encode", json=as_json(given)))
    assert await EverlongCodec(store, inner=Xor()).decode(again) == [given]


async def test_a_failing_team_codec_is_named_and_not_quoted() -> None:
    store = MemoryBlobStore()
    [encoded] = await EverlongCodec(store, inner=Cipher()).encode(
        [Payload(metadata={"encoding": b"json/plain"}, data=b'"x"')]
    )
    damaged = Payload(metadata=encoded.metadata, data=encoded.data[:-1] + b"?")
    async with browser(store, inner=Cipher()) as client:
        refused = await client.post("/decode", json=as_json(damaged))
    assert refused.status_code == 422
    assert "the payload codec Cipher cannot convert these payloads (InvalidTag)" in refused.text
