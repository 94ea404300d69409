"""File store on its disk: properties that the store contract cannot see."""

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from everlong.errors import ConfigError, StoreUnavailable, UnknownStoreScheme
from everlong.models import Kind, thread_key
from everlong.storage import file, open_store
from everlong.storage.file import FileBlobStore
from everlong.storage.pack_store import PackStore
from everlong.storage.packs import Pack

WRITER = """
import asyncio, sys
from everlong.models import Kind, thread_key
from everlong.storage import open_store
from everlong.storage.pack_store import PackStore
async def main():
    packs = PackStore(open_store(sys.argv[1]))
    for i in range(100_000):
        body = f"{i} ".encode() * 20_000
        await packs.write_body(thread_key("n", "t"), Kind.MESSAGE, body)
        print(i, flush=True)
asyncio.run(main())
"""


def open_body(key: str, data: bytes) -> bytes:
    """Return the body of a pack; its key holds its thread and its name."""
    _, thread, name = key.removesuffix(".pack").split("/")
    return Pack(data, bytes.fromhex(name), thread, None).assemble([])


@pytest.mark.guarantee(1)
async def test_a_writer_that_is_killed_leaves_only_whole_objects(tmp_path: Path) -> None:
    for round_number in range(3):
        root = tmp_path / str(round_number)
        root.mkdir()
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, root.as_uri()], stdout=subprocess.PIPE
        )
        try:
            assert writer.stdout is not None
            acknowledged = -1
            while acknowledged < 10 + 7 * round_number:
                acknowledged = int(writer.stdout.readline())
        finally:
            writer.send_signal(signal.SIGKILL)
            rest = writer.communicate()[0].splitlines()
        acknowledged = int(rest[-1]) if rest else acknowledged
        store = open_store(root.as_uri())
        bodies = [open_body(info.key, await store.get(info.key)) async for info in store.list("")]
        numbers = {int(body.split()[0]) for body in bodies}
        assert numbers >= set(range(acknowledged + 1)), "an acknowledged object is gone"
        assert all(len(body) == len(f"{body.split()[0].decode()} ") * 20_000 for body in bodies)


def test_abandoned_partial_files_are_removed_and_fresh_ones_kept(tmp_path: Path) -> None:
    open_store(tmp_path.as_uri())
    old, fresh = tmp_path / ".partial/old", tmp_path / ".partial/fresh"
    for path in (old, fresh):
        path.write_bytes(b"half")
    two_hours_ago = time.time() - 7200
    os.utime(old, (two_hours_ago, two_hours_ago))
    open_store(tmp_path.as_uri())
    assert not old.exists()
    assert fresh.exists()


@pytest.mark.guarantee(1)
async def test_partial_files_are_not_listed(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    (tmp_path / ".partial/half").write_bytes(b"half")
    assert [info async for info in store.list("")] == []


@pytest.mark.guarantee(1)
async def test_a_failed_put_leaves_nothing_behind(tmp_path: Path) -> None:
    packs = PackStore(FileBlobStore(tmp_path))
    (tmp_path / "v1").write_bytes(b"a file where a directory should be")
    with pytest.raises(StoreUnavailable, match=r"cannot write to the blob store file:///.*Check"):
        await packs.write_body(thread_key("n", "t"), Kind.MESSAGE, b"x")
    assert list((tmp_path / ".partial").iterdir()) == []


def test_a_directory_that_cannot_be_created_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="cannot open the blob store"):
        open_store((tmp_path / "file/sub").as_uri())


@pytest.mark.guarantee(16)
async def test_a_deleted_directory_is_an_outage_and_no_empty_store(tmp_path: Path) -> None:
    store = open_store((tmp_path / "disk").as_uri())
    await store.put("v1/a", b"x")
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    with pytest.raises(StoreUnavailable):
        await store.get("v1/a")
    with pytest.raises(StoreUnavailable):
        [info async for info in store.list("")]
    with pytest.raises(StoreUnavailable):
        await store.put("v1/a", b"x")
    with pytest.raises(StoreUnavailable):
        await store.delete(["v1/a"])
    (tmp_path / "unmounted").rename(tmp_path / "disk")
    assert await store.get("v1/a") == b"x"


@pytest.mark.guarantee(17)
async def test_stored_files_are_private_to_the_user(tmp_path: Path) -> None:
    store = open_store((tmp_path / "blobs").as_uri())
    await store.put("v1/a/b", b"x")
    # Each alone is enough: the directory, and the file in a directory that others may enter.
    for path in (tmp_path / "blobs", tmp_path / "blobs/v1/a/b"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_spaces_and_unicode_in_a_store_path_work(tmp_path: Path) -> None:
    open_store((tmp_path / "a b ü").as_uri())
    assert (tmp_path / "a b ü").is_dir()


@pytest.mark.parametrize("url", ["ftp://x/y", "s3x://key:secret@bucket", "", "/var/lib", "blobs"])
def test_an_unknown_scheme_is_refused_without_repeating_secrets(url: str) -> None:
    with pytest.raises(UnknownStoreScheme, match=r"file:///(absolute/dir|var/lib)") as raised:
        open_store(url)
    assert "secret" not in str(raised.value)


def test_an_invalid_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        open_store("file://[bad")


@pytest.mark.parametrize("url", ["file:relative", "file://host/dir"])
def test_a_file_url_that_is_not_absolute_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="three slashes"):
        open_store(url)


class Syncs:
    """Notes what is synced, and what is renamed, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.seen: list[str] = []
        fsync, link = os.fsync, os.link

        def note_sync(descriptor: int) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(root)
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
            self.seen.append("file" if is_file else str(path))
            fsync(descriptor)

        def note_link(source: str, target: str, **options: Any) -> None:
            link(source, target, **options)
            self.seen.append("link")

        monkeypatch.setattr(os, "fsync", note_sync)
        monkeypatch.setattr(os, "link", note_link)

    def taken(self) -> list[str]:
        seen, self.seen = self.seen, []
        return seen


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc what a descriptor stands for")
async def test_a_put_syncs_the_file_and_its_directory_and_parents_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = FileBlobStore(tmp_path), FileBlobStore(tmp_path)
    syncs = Syncs(monkeypatch, tmp_path)
    first = ["file", "link", "v1/t", "v1", "."]
    await store.put("v1/t/a", b"a")
    assert syncs.taken() == first
    await store.put("v1/t/b", b"b")
    assert syncs.taken() == ["file", "link", "v1/t"]
    # Another process may have made the directory, and not have synced its parents yet.
    await other.put("v1/t/c", b"c")
    assert syncs.taken() == first
    shutil.rmtree(tmp_path / "v1")
    await store.put("v1/t/a", b"a")
    assert syncs.taken() == first
    assert await store.get("v1/t/a") == b"a"
    assert not list((tmp_path / ".partial").iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have scratch files only")
async def test_a_put_makes_no_scratch_file_if_the_file_system_supports_unnamed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileBlobStore(tmp_path)
    assert await store.put("v1/t/a", b"a") is True
    monkeypatch.setattr(store, "_put_scratch", lambda *_: pytest.fail("made a scratch file"))
    assert await store.put("v1/t/b", b"b") is True
    assert await store.get("v1/t/b") == b"b"


@pytest.mark.parametrize("refused", ["open", "link"])
async def test_a_file_system_without_unnamed_files_gets_scratch_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    store = FileBlobStore(tmp_path)
    await store.put("v1/t/a", b"a")
    called = getattr(os, refused)

    def refuse(path: Any, *args: Any, **options: Any) -> Any:
        if str(path) == str(tmp_path / "v1/t") and args[0] & os.O_WRONLY:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        if str(path).startswith("/proc/"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return called(path, *args, **options)

    monkeypatch.setattr(os, refused, refuse)
    assert await store.put("v1/t/b", b"b") is True
    assert await store.put("v1/t/b", b"b") is False
    assert await store.get("v1/t/b") == b"b"
    assert not store._has_unnamed
    assert not list((tmp_path / ".partial").iterdir())


async def test_the_directories_that_a_file_store_remembers_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "_SYNCED_MAX", 3)
    store = FileBlobStore(tmp_path)
    for number in range(8):
        await store.put(f"v1/{number}/a", b"a")
        assert len(store._synced) <= 3
