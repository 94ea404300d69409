"""PUTs to a bucket: on the condition that the object is new, and without it where that does not work."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest
from obstore.exceptions import AlreadyExistsError

from everlong.errors import StoreUnavailable
from everlong.storage import BlobStore, buckets, open_store
from everlong.storage.base import FAILED_PUTS_MAX
from everlong.storage.buckets import BucketBlobStore
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore

CONDITIONAL, PLAIN = "conditional", "plain"
LISTING = b"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated></ListBucketResult>"


class FakeClient:
    """Stands for obstore's client; takes a while for each request."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.requests: list[str] = []
        self.objects: dict[str, bytes] = {}

    async def put_async(
        self, path: str, data: bytes, *, use_multipart: bool, mode: str | None = None
    ) -> None:
        assert not use_multipart
        self.requests.append(PLAIN if mode is None else CONDITIONAL)
        await asyncio.sleep(self.seconds)
        if mode == "create" and path in self.objects:
            raise AlreadyExistsError("it exists")
        self.objects[path] = data


def make_store(client: Any) -> BucketBlobStore:
    return BucketBlobStore("s3://b", "", reads=client, writes=client, bulk_delete=True)


class Answer(NamedTuple):
    """The answer of a server to a conditional PUT whose condition it does not check."""

    status: int
    code: str = ""
    takes_object: bool = False


class FakeS3:
    """An S3 server with a script of answers to conditional PUTs, one each, and sound ones after that."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.requests: list[str] = []
        self.objects: set[str] = set()
        self.script: list[Answer] = []
        self.plain_status = 200

    def answer(self, path: str, *, conditional: bool) -> tuple[int, str]:
        self.requests.append(CONDITIONAL if conditional else PLAIN)
        if conditional and self.script:
            answer = self.script.pop(0)
            if answer.takes_object:
                self.objects.add(path)
            return answer.status, answer.code
        if conditional and path in self.objects:
            return 412, "PreconditionFailed"
        if not conditional and self.plain_status != 200:
            return self.plain_status, "InvalidRequest"
        self.objects.add(path)
        return 200, ""


@contextmanager
def serve(fake: FakeS3) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.reply(200, LISTING)

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, code = fake.answer(self.path, conditional="If-None-Match" in self.headers)
            self.reply(status, f"<Error><Code>{code}</Code></Error>".encode() if code else b"")

        def reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("ETag", '"0"')
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        fake.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("CONFIG_FILE", "SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(f"AWS_{name}", "/dev/null")
    for name in ("PROFILE", "SESSION_TOKEN", "CA_BUNDLE", "CONDITIONAL_PUT"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    fake = FakeS3()
    with serve(fake):
        yield fake


def open_bucket(s3: FakeS3) -> BlobStore:
    return open_store(f"s3://bucket/p?endpoint={s3.endpoint}")


async def test_a_repeated_put_to_a_slow_store_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the two requests has the time of one."""
    monkeypatch.setattr(buckets, "_ANSWER_SECONDS_MAX", 1.0)
    client = FakeClient(0.6)
    store = make_store(client)
    assert await store.put("v1/x", b"d") is True
    assert await store.put("v1/x", b"d") is False
    assert client.requests == [CONDITIONAL, CONDITIONAL, PLAIN]


async def test_a_put_after_one_that_failed_is_a_single_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buckets, "_ANSWER_SECONDS_MAX", 0.1)
    client = FakeClient(10.0)
    store = make_store(client)
    with pytest.raises(StoreUnavailable, match="did not answer in time"):
        await store.put("v1/x", b"d")
    monkeypatch.setattr(buckets, "_ANSWER_SECONDS_MAX", 10.0)
    client.seconds = 0.0
    assert await store.put("v1/x", b"d") is None
    assert await store.put("v1/x", b"d") is False
    assert await store.put("v1/y", b"d") is True
    assert client.requests == [CONDITIONAL, PLAIN, CONDITIONAL, PLAIN, CONDITIONAL]


async def test_a_put_that_was_cancelled_is_a_single_request_the_next_time() -> None:
    client = FakeClient(10.0)
    store = make_store(client)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(store.put("v1/x", b"d"), 0.1)
    client.seconds = 0.0
    assert await store.put("v1/x", b"d") is None
    assert client.requests == [CONDITIONAL, PLAIN]


async def test_objects_are_written_where_the_condition_is_disabled(
    s3: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    store = open_bucket(s3)
    assert await store.put("x", b"d") is None
    assert await store.put("x", b"d") is None
    assert s3.requests == [PLAIN, PLAIN]


@pytest.mark.parametrize(
    "answer",
    [Answer(400, "InvalidArgument"), Answer(400), Answer(405, "MethodNotAllowed"), Answer(501)],
    ids=["400", "400 without a code", "405", "501"],
)
async def test_a_server_that_refuses_the_condition_is_tried_once(
    s3: FakeS3, answer: Answer
) -> None:
    store = open_bucket(s3)
    s3.script = [answer]
    assert await store.put("x", b"d") is None
    assert await store.put("y", b"d") is None
    assert s3.requests == [CONDITIONAL, PLAIN, PLAIN]


async def test_a_server_that_refuses_the_plain_put_too_is_tried_again(s3: FakeS3) -> None:
    """The 400 was not for the condition."""
    store = open_bucket(s3)
    s3.script = [Answer(400, "InvalidRequest")]
    s3.plain_status = 400
    with pytest.raises(StoreUnavailable, match="answered 400 InvalidRequest"):
        await store.put("x", b"d")
    s3.plain_status = 200
    assert await store.put("y", b"d") is True
    assert s3.requests == [CONDITIONAL, PLAIN, CONDITIONAL]


@pytest.mark.parametrize("code", ["ExpiredToken", "RequestTimeout"])
async def test_a_refusal_for_another_reason_keeps_the_condition(s3: FakeS3, code: str) -> None:
    store = open_bucket(s3)
    s3.script = [Answer(400, code)]
    with pytest.raises(StoreUnavailable, match=code):
        await store.put("x", b"d")
    assert await store.put("y", b"d") is True
    assert s3.requests == [CONDITIONAL, CONDITIONAL]


@pytest.mark.parametrize("status", [500, 503])
@pytest.mark.parametrize("takes_object", [True, False])
async def test_an_object_whose_put_got_an_error_is_not_taken_for_an_older_one(
    s3: FakeS3, status: int, *, takes_object: bool
) -> None:
    store = open_bucket(s3)
    s3.script = [Answer(status, "InternalError", takes_object)]
    assert await store.put("x", b"d") is None
    assert await store.put("x", b"d") is False
    assert s3.requests == [CONDITIONAL, PLAIN, CONDITIONAL, PLAIN]


class LosingStore(MemoryBlobStore):
    """Takes every object; its answer is lost while `loses` is set."""

    loses = True

    async def put(self, key: str, data: bytes) -> bool | None:
        is_new = await super().put(key, data)
        if self.loses:
            raise StoreUnavailable("the answer was lost")
        return is_new


async def test_a_lost_answer_is_remembered_after_many_others() -> None:
    """The oldest are forgotten, so that a thousand failed PUTs do not use up the memory of them."""
    store = LosingStore()
    packs = PackStore(store)
    for number in range(FAILED_PUTS_MAX + 1):
        with pytest.raises(StoreUnavailable):
            await packs.put(f"v1/{number}", b"d")
    store.loses = False
    assert await packs.put(f"v1/{FAILED_PUTS_MAX}", b"d"), "the newest counts as new"
    assert not await packs.put(f"v1/{FAILED_PUTS_MAX}", b"d"), "and only once"
    assert not await packs.put("v1/0", b"d"), "the oldest is forgotten"
