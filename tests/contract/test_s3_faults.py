"""Faults of the server and of the network between: a call ends soon, and never with wrong bytes."""

import asyncio
import datetime
import ipaddress
import ssl
import threading
import time
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from everlong.errors import BlobMissing, ConfigError, EverlongError, StoreUnavailable
from everlong.limits import MIB
from everlong.storage import BlobStore, open_store
from tests.support.s3_server import S3Server, start_s3_server
from tests.support.tcp_proxy import Proxy

pytestmark = pytest.mark.server

DEAD_SECONDS_MAX = 5.0
BODY = bytes(range(256)) * 4096  # 1 MiB


@pytest.fixture
async def proxy(s3: S3Server) -> AsyncIterator[Proxy]:
    async with Proxy(s3.endpoint) as running:
        yield running


@pytest.fixture
async def store(s3: S3Server, proxy: Proxy) -> BlobStore:
    return await through(proxy, s3)


async def through(proxy: Proxy, s3: S3Server) -> BlobStore:
    """Open a store by way of the proxy, which needs this event loop meanwhile."""
    url = s3.url(f"faults/{uuid.uuid4().hex}").replace(s3.endpoint, proxy.endpoint)
    return await asyncio.to_thread(open_store, url)


async def list_keys(store: BlobStore) -> list[str]:
    return [info.key async for info in store.list("")]


def every_call(store: BlobStore) -> list[Coroutine[Any, Any, object]]:
    calls: list[Coroutine[Any, Any, object]] = [store.put("new", b"x"), store.get("k")]
    return [*calls, store.get_range("k", 0, 1), list_keys(store), store.delete(["new"])]


async def outage(store: BlobStore) -> str:
    """Make all calls at once; return the cause that all their errors name, with the store, in time."""
    begin = time.monotonic()
    outcomes = await asyncio.gather(*every_call(store), return_exceptions=True)
    assert time.monotonic() - begin < DEAD_SECONDS_MAX
    assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}, outcomes
    causes = {str(outcome).partition(f"{store!r}: ")[2] for outcome in outcomes}
    assert len(causes) == 1, outcomes
    return causes.pop()


@contextmanager
def serve_answer(status: int, code: str) -> Iterator[str]:
    """A server that has one answer to everything; its endpoint."""
    body = f"<Error><Code>{code}</Code><Message>quoted-token</Message></Error>".encode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.guarantee(19)
@pytest.mark.parametrize(
    ("status", "code", "kind", "expected"),
    [
        (403, "AccessDenied", StoreUnavailable, r"refuses access \(AccessDenied\). Allow these"),
        (403, "RequestTimeTooSkewed", StoreUnavailable, "clock"),
        (403, "InvalidObjectState", StoreUnavailable, "archive. Restore it"),
        (
            400,
            "ExpiredToken",
            StoreUnavailable,
            r"does not accept the credentials \(ExpiredToken\)",
        ),
        (301, "PermanentRedirect", ConfigError, "another region. Add region="),
        (400, "AuthorizationHeaderMalformed", ConfigError, "another region. Add region="),
        (500, "InternalError", StoreUnavailable, "answered 500 InternalError. Check the"),
        (503, "SlowDown", StoreUnavailable, "answered 503 SlowDown"),
    ],
)
def test_refusals_of_the_server_become_everlong_errors(
    s3: S3Server, status: int, code: str, kind: type[EverlongError], expected: str
) -> None:
    begin = time.monotonic()
    with serve_answer(status, code) as endpoint, pytest.raises(kind, match=expected) as raised:
        open_store(s3.url("p").replace(s3.endpoint, endpoint))
    assert time.monotonic() - begin < DEAD_SECONDS_MAX
    assert "quoted" not in str(raised.value)
    # The server's answer may quote the signed request, so a refusal is not chained.
    assert raised.value.__cause__ is None or status >= 500 or status == 301


@pytest.mark.guarantee(18)
async def test_an_endpoint_that_hangs_ends_every_call_in_time(
    store: BlobStore, proxy: Proxy
) -> None:
    await store.put("k", b"x")
    proxy.hang = True
    assert (await outage(store)).startswith("it did not answer in time. Check that it is up")
    proxy.hang = False
    assert await store.get("k") == b"x"


async def test_opening_an_endpoint_that_hangs_ends_in_time(s3: S3Server, proxy: Proxy) -> None:
    proxy.hang = True
    begin = time.monotonic()
    with pytest.raises(StoreUnavailable, match="did not answer in time"):
        await through(proxy, s3)
    assert time.monotonic() - begin < DEAD_SECONDS_MAX


async def test_connections_that_are_closed_end_every_call(store: BlobStore, proxy: Proxy) -> None:
    await store.put("k", b"x")
    proxy.refuse = True
    proxy.drop()
    assert "the connection broke" in await outage(store)
    proxy.refuse = False
    assert await store.get("k") == b"x"


async def test_a_connection_lost_between_calls_is_not_noticed(
    store: BlobStore, proxy: Proxy
) -> None:
    for number in range(5):
        await store.put(f"k{number}", b"x")
        assert await store.get(f"k{number}") == b"x"
        proxy.drop()


async def test_a_get_that_is_cut_goes_on_where_it_was(store: BlobStore, proxy: Proxy) -> None:
    await store.put("k", BODY)
    proxy.drop()
    proxy.cut_after, proxy.cuts_left = 300_000, 1
    assert await store.get("k") == BODY
    assert proxy.cuts_left == 0


@pytest.mark.guarantee(18)
async def test_a_get_that_is_cut_each_time_never_returns_short(
    store: BlobStore, proxy: Proxy
) -> None:
    await store.put("k", BODY)
    for cut_after in (0, 100, 2_000, 300_000):
        proxy.drop()
        proxy.cut_after, proxy.cuts_left = cut_after, 1_000
        for call in (store.get("k"), store.get_range("k", 10, len(BODY) - 20)):
            with pytest.raises(StoreUnavailable):
                await call
    proxy.cuts_left = 0
    assert await store.get("k") == BODY


@pytest.mark.guarantee(18)
async def test_a_get_that_stalls_ends_in_time(store: BlobStore, proxy: Proxy) -> None:
    await store.put("k", BODY)
    proxy.drop()
    proxy.stall_after = 300_000
    begin = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await store.get("k")
    assert time.monotonic() - begin < DEAD_SECONDS_MAX


async def test_a_put_over_a_slow_line_gets_time_for_its_size(
    store: BlobStore, proxy: Proxy
) -> None:
    data = BODY * 4
    proxy.upload_bytes_per_second = 5 * MIB // 6
    begin = time.monotonic()
    await store.put("k", data)
    assert time.monotonic() - begin > 4.0, "this was not slow enough to show anything"
    assert await store.get("k") == data


@pytest.mark.guarantee(18)
async def test_an_abandoned_put_leaves_nothing(store: BlobStore, proxy: Proxy) -> None:
    proxy.upload_bytes_per_second = 8 * MIB
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await store.put("k", BODY * 32)  # More than the buffers on its way hold.
    proxy.upload_bytes_per_second = None
    with pytest.raises(BlobMissing):
        await store.get("k")
    assert await list_keys(store) == []


@pytest.mark.guarantee(18)
async def test_a_killed_server_loses_nothing_and_the_store_heals(
    tmp_path: Path, s3: S3Server
) -> None:
    acknowledged: list[str] = []

    async def write(store: BlobStore) -> None:
        for number in range(10_000):
            await store.put(f"v1/{number}", f"{number} ".encode() * 2000)
            acknowledged.append(f"v1/{number}")

    with start_s3_server(tmp_path) as weed:
        store = open_store(weed.url("p"))
        writing = asyncio.gather(*(write(store) for _ in range(4)), return_exceptions=True)
        async with asyncio.timeout(30):
            while len(acknowledged) < 200:
                await asyncio.sleep(0.01)
        weed.kill()
        outcomes = await writing
        assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}
        with pytest.raises(StoreUnavailable, match="no server answers"):
            await store.get("v1/0")
        weed.restart()
        for key in set(acknowledged):
            assert await store.get(key) == f"{key.removeprefix('v1/')} ".encode() * 2000
        await store.put("v1/after", b"x")
        assert "v1/after" in await list_keys(store)


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that vouches for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "everlong test")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain, form = serialization.NoEncryption(), serialization.PrivateFormat.PKCS8
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem = key.private_bytes(serialization.Encoding.PEM, form, plain)
    (folder / "key.pem").write_bytes(pem)
    return folder / "cert.pem", folder / "key.pem"


async def test_a_certificate_is_verified_and_a_custom_ca_can_be_trusted(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    async with Proxy(s3.endpoint, tls=context) as proxy:
        with pytest.raises(StoreUnavailable, match="Name the authority"):
            await through(proxy, s3)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "none.pem"))
        with pytest.raises(ConfigError, match="AWS_CA_BUNDLE names cannot be read"):
            await through(proxy, s3)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(cert))
        store = await through(proxy, s3)
        await store.put("k", BODY)
        assert await store.get("k") == BODY
