"""Buckets: prefixes, foreign objects and credentials, which the store contract cannot see."""

import asyncio
import itertools
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import boto3
import pytest

from everlong.embedded.server import find_free_port
from everlong.errors import BlobMissing, ConfigError, EverlongError, StoreUnavailable
from everlong.storage import BlobStore, aws, open_store
from everlong.storage.base import get_range_lister
from tests.support.s3_server import BUCKET, KEY, REGION, SECRET, S3Server

pytestmark = pytest.mark.server

DEAD_SECONDS_MAX = 5.0

USER = """
import asyncio, sys
from everlong.storage import open_store
async def main():
    store = open_store(sys.argv[1])
    await asyncio.gather(*(store.put(f"k{number}", b"x" * 10_000) for number in range(10)))
    unfinished = asyncio.ensure_future(store.get("k1"))
    await asyncio.sleep(0)
asyncio.run(main())
"""


@pytest.fixture
def prefix() -> str:
    return f"test/{uuid.uuid4().hex}"


async def list_keys(store: BlobStore, prefix: str = "") -> set[str]:
    return {info.key async for info in store.list(prefix)}


@pytest.mark.guarantee(106)
async def test_ranges_of_a_bucket_equal_its_listing_in_order(s3: S3Server, prefix: str) -> None:
    """The listing takes several pages, and keys of other prefixes sort between and around ours."""
    store = open_store(s3.url(prefix))
    ranges = get_range_lister(store)
    assert ranges is not None
    ours = sorted(
        f"v1/{uuid.uuid4().hex}/{uuid.uuid4().hex}{uuid.uuid4().hex}.pack" for _ in range(1100)
    )
    others = ["v1/readme.txt", "v1/3", "v1-other/x", "v2/x", "quarantine/v1/0/x"]
    slots = asyncio.Semaphore(32)

    async def put(key: str) -> None:
        async with slots:
            await store.put(key, b"x")

    await asyncio.gather(*map(put, [*ours, *others]))
    digits = "0123456789abcdefg"
    found: list[str] = []
    for first, following in itertools.pairwise(digits):
        part = [
            info.key async for info in ranges.list_range("v1/", f"v1/{first}", f"v1/{following}")
        ]
        assert part == sorted(part)
        found += part
    assert [key for key in found if key.endswith(".pack")] == ours
    middle = ours[550]
    rest = [info.key async for info in ranges.list_range("v1/", middle, "v1/g")]
    assert [key for key in rest if key.endswith(".pack")] == ours[551:]
    assert await list_keys(store, "v1/") == {*ours, "v1/readme.txt", "v1/3"}


def refusal(kind: type[EverlongError], url: str) -> str:
    """The message that opening a URL ends in: soon, and without anything of its query."""
    begin = time.monotonic()
    with pytest.raises(kind) as raised:
        open_store(url)
    assert time.monotonic() - begin < DEAD_SECONDS_MAX
    text = str(raised.value)
    for secret in (SECRET, KEY, "127.0.0.1", REGION, "wrong"):
        assert secret not in text
    return text


def write_profile(path: Path, secret: str, profile: str = "agents") -> None:
    path.write_text(
        f"[{profile}]\naws_access_key_id = {KEY}\naws_secret_access_key = {secret}\n",
        encoding="utf-8",
    )


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("AWS_SECRET_ACCESS_KEY", "SignatureDoesNotMatch"),
        ("AWS_ACCESS_KEY_ID", "InvalidAccessKeyId"),
    ],
)
def test_wrong_keys_are_reported(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    monkeypatch.setenv(name, "wrong")
    text = refusal(StoreUnavailable, s3.url("p"))
    assert f"s3://everlong/p: it does not accept the credentials ({code}). Check the key" in text


def test_a_missing_bucket_is_a_mistake_in_the_url(s3: S3Server) -> None:
    text = refusal(ConfigError, s3.url("p").replace(BUCKET, "no-such-bucket"))
    assert "s3://no-such-bucket/p: there is no such bucket. Create the bucket, or correct" in text


def test_an_endpoint_that_refuses_connections_is_reported(s3: S3Server) -> None:
    url = s3.url("p").replace(s3.endpoint, f"http://127.0.0.1:{find_free_port()}")
    text = refusal(StoreUnavailable, url)
    assert "s3://everlong/p: no server answers at its endpoint. Check the endpoint" in text


def test_a_repr_is_the_url_without_its_query(s3: S3Server) -> None:
    assert repr(open_store(s3.url("a/b"))) == "s3://everlong/a/b"
    assert repr(open_store(s3.url(""))) == "s3://everlong"


async def test_two_prefixes_do_not_see_each_other(s3: S3Server, prefix: str) -> None:
    one, other, below = (open_store(s3.url(f"{prefix}/{name}")) for name in ("a", "ab", "a/b"))
    await one.put("k", b"one")
    await other.put("k", b"other")
    await other.put("only", b"x")
    assert (await one.get("k"), await other.get("k")) == (b"one", b"other")
    assert await list_keys(one) == {"k"}
    assert await list_keys(other) == {"k", "only"}
    assert await list_keys(below) == set()
    with pytest.raises(BlobMissing):
        await one.get("only")
    await one.delete(["k", "only"])
    assert await list_keys(other) == {"k", "only"}


async def test_a_whole_bucket_can_be_a_store(s3: S3Server, prefix: str) -> None:
    whole, part = open_store(s3.url("")), open_store(s3.url(prefix))
    await whole.put(f"{prefix}/k", b"x")
    assert await part.get("k") == b"x"
    assert f"{prefix}/k" in await list_keys(whole)
    assert await list_keys(whole, f"{prefix}/") == {f"{prefix}/k"}
    await whole.delete([f"{prefix}/k"])
    assert await list_keys(part) == set()


async def test_a_listing_omits_foreign_objects(s3: S3Server, prefix: str) -> None:
    store = open_store(s3.url(prefix))
    await store.put("ours/k", b"x")
    client = boto3.client("s3", region_name=REGION, endpoint_url=s3.endpoint)
    for name in ("", "ours/a b", "ours/ä", ".hidden", "ours/.hidden"):
        client.put_object(Bucket=BUCKET, Key=f"{prefix}/{name}", Body=b"x")
    assert await list_keys(store) == {"ours/k"}
    assert await list_keys(store, "ours/") == {"ours/k"}


@pytest.mark.guarantee(16)
async def test_a_deleted_bucket_is_not_an_empty_one(s3: S3Server) -> None:
    bucket = f"gone-{uuid.uuid4().hex[:8]}"
    client = boto3.client("s3", region_name=REGION, endpoint_url=s3.endpoint)
    client.create_bucket(Bucket=bucket)
    store = open_store(s3.url("p").replace(BUCKET, bucket))
    await store.put("k", b"x")
    client.delete_object(Bucket=bucket, Key="p/k")
    client.delete_bucket(Bucket=bucket)
    for call in (store.get("k"), store.get_range("k", 0, 0), store.delete(["k"]), list_keys(store)):
        with pytest.raises(StoreUnavailable, match="no such bucket"):
            await call


async def test_keys_come_from_a_profile(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prefix: str
) -> None:
    write_profile(tmp_path / "credentials", SECRET)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    store = open_store(f"{s3.url(prefix)}&profile=agents")
    await store.put("k", b"x")
    refusal(StoreUnavailable, s3.url(prefix))
    refusal(ConfigError, f"{s3.url(prefix)}&profile=missing")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "no AWS credentials" in refusal(ConfigError, s3.url(prefix))
    monkeypatch.setenv("AWS_PROFILE", "agents")
    assert await open_store(s3.url(prefix)).get("k") == b"x"


async def test_new_keys_in_a_file_need_no_restart(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prefix: str
) -> None:
    file = tmp_path / "credentials"
    write_profile(file, SECRET)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setattr(aws, "_KEYS_SECONDS", 0.0)
    store = open_store(f"{s3.url(prefix)}&profile=agents")
    await store.put("k", b"x")
    write_profile(file, "wrong")
    await asyncio.sleep(0.2)  # obstore does not ask twice within a tenth of a second.
    with pytest.raises(StoreUnavailable, match="does not accept the credentials") as raised:
        await store.get("k")
    assert raised.value.__cause__ is None, "it might quote the signed request"
    file.write_text("", encoding="utf-8")
    await asyncio.sleep(0.2)
    with pytest.raises(StoreUnavailable, match="no credentials are available"):
        await store.get("k")
    write_profile(file, SECRET)
    await asyncio.sleep(0.2)
    assert await store.get("k") == b"x"


def test_temporary_keys_are_renewed_by_botocore(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process that hands out keys for 20 minutes stands in for a role."""
    script, config = tmp_path / "keys.sh", tmp_path / "config"
    expiry = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1200))
    script.write_text(
        f"#!/bin/sh\necho called >> {tmp_path}/calls\n"
        f'echo \'{{"Version": 1, "AccessKeyId": "{KEY}", "SecretAccessKey": "{SECRET}", '
        f'"Expiration": "{expiry}"}}\'\n',
        encoding="utf-8",
    )
    script.chmod(0o700)
    config.write_text(f"[profile agents]\ncredential_process = {script}\n", encoding="utf-8")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setattr(aws, "_KEYS_SECONDS", 0.0)
    store = open_store(f"{s3.url('p')}&profile=agents")
    for _ in range(3):
        asyncio.run(store.put("k", b"x"))
        time.sleep(0.15)
    assert (tmp_path / "calls").read_text(encoding="utf-8").count("called") == 1


async def test_every_event_loop_can_use_a_store(s3: S3Server, prefix: str) -> None:
    store = open_store(s3.url(prefix))
    failures: list[BaseException] = []

    async def use(name: str) -> None:
        for number in range(10):
            await store.put(f"{name}/{number}", name.encode())
            assert await store.get(f"{name}/{number}") == name.encode()
        assert len(await list_keys(store, f"{name}/")) == 10

    def in_thread(name: str) -> None:
        try:
            asyncio.run(use(f"{name}1"))
            asyncio.run(use(f"{name}2"))
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=in_thread, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    await use("main")
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert not failures
    assert len(await list_keys(store)) == 70


def test_a_process_that_has_used_a_store_ends_cleanly(s3: S3Server, prefix: str) -> None:
    for _ in range(3):
        command = [sys.executable, "-c", USER, s3.url(prefix)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (ended.returncode, ended.stderr) == (0, "")


FILING = """
import asyncio, resource, sys
from pathlib import Path
from everlong.storage import open_store
store, path = open_store(sys.argv[1]), Path(sys.argv[2])
asyncio.run(store.put("warm", bytes(1 << 20)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
asyncio.run(store.put_file("v1/file", path))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("kind", ["s3", "file"])
def test_a_file_is_stored_without_being_held_in_memory(
    s3: S3Server, prefix: str, tmp_path: Path, kind: str
) -> None:
    """Four parts of 16 MiB at a time, whatever the file has."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(256 << 20)
    url = s3.url(prefix) if kind == "s3" else (tmp_path / "blobs").as_uri()
    command = [sys.executable, "-c", FILING, url, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert int(ended.stdout) < 128 * 1024  # In KiB.
