"""Killed and hostile queries: no process keeps running, and no file stays behind."""

import asyncio
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from everlong.queries import sandbox
from everlong.queries.engine import (
    SCRATCH_PREFIX,
    clear_orphans,
    make_scratch_folder,
    open_statement,
)
from everlong.queries.view_files import ViewFiles
from tests.support.query_fuzzer import RSS_GROWTH_MAX, SECONDS_MAX, fuzz, list_children
from tests.support.query_runner import ENDLESS

ASKING = f"""
import asyncio, sys
from everlong.queries.engine import open_statement
from everlong.queries.engine import make_scratch_folder

async def ask():
    with make_scratch_folder() as folder:
        async with open_statement({ENDLESS!r}, folder) as statement:
            print(folder, flush=True)
            if sys.argv[1] == "reads":
                await asyncio.sleep(600)
            await statement.run({{}})

asyncio.run(ask())
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files that no other process uses."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def start_asking(what: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    process = subprocess.Popen(
        [sys.executable, "-c", ASKING, what], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def reads() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    yield from start_asking("reads")


@pytest.fixture
def runs() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    yield from start_asking("runs")


def wait(until: Callable[[], bool], seconds_max: float = 30) -> None:
    deadline = time.monotonic() + seconds_max
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.guarantee(102)
@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_statement_ends_with_its_parent_process(
    runs: tuple[subprocess.Popen[str], Path], how: signal.Signals
) -> None:
    process, folder = runs
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    # Once it has opened the database, it is well under way.
    wait(lambda: any(is_open_in(int(pid), folder) for pid in children.read_text().split()))
    [child] = [int(pid) for pid in children.read_text().split()]
    process.send_signal(how)
    process.wait(30)
    wait(lambda: not is_alive(child), 10)
    # It may have met the end of its pipe before it could clear up: then the next query does.
    clear_orphans()
    assert not folder.exists()


def is_open_in(pid: int, folder: Path) -> bool:
    try:
        files = [each.readlink() for each in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    return any(each.is_relative_to(folder) for each in files)


def test_files_of_killed_processes_are_removed_and_files_of_others_kept(
    reads: tuple[subprocess.Popen[str], Path], temporary: Path
) -> None:
    process, folder = reads
    assert folder.exists()
    with make_scratch_folder() as own:
        clear_orphans()
        assert folder.exists()
        process.kill()
        process.wait(30)
        assert folder.exists()
        clear_orphans()
        assert not folder.exists()
        assert own.exists()
    assert list(temporary.iterdir()) == []


def test_only_query_folders_are_removed(tmp_path: Path) -> None:
    (tmp_path / "of-a-person").mkdir()
    (tmp_path / f"{SCRATCH_PREFIX}link").symlink_to(tmp_path / "of-a-person")
    (tmp_path / f"{SCRATCH_PREFIX}file").write_text("x")
    clear_orphans()
    assert len(list(tmp_path.iterdir())) == 3


def test_the_kernel_bounds_parsing_and_then_the_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    bounds = {"memory_bytes": 256 << 20, "disk_bytes": 7, "seconds": 1.5}
    sandbox.bound_parsing(bounds)
    assert limits[resource.RLIMIT_DATA] == (256 << 20, 768 << 20)
    assert limits[resource.RLIMIT_FSIZE] == (0, 7)
    assert limits[resource.RLIMIT_CPU][0] == 8
    sandbox.bound_running(bounds)
    assert limits[resource.RLIMIT_DATA] == (768 << 20, 768 << 20)
    assert limits[resource.RLIMIT_FSIZE] == (7, 7)
    assert limits[resource.RLIMIT_CPU] == (136, 136)


@pytest.mark.guarantee(102)
@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
async def test_a_cancelled_query_leaves_no_process_and_no_files(temporary: Path) -> None:
    async def ask() -> None:
        with make_scratch_folder() as folder:
            async with open_statement(ENDLESS, folder) as statement:
                files = ViewFiles(folder, statement.needs)
                files.add("threads", [{"thread_id": "a"}])
                await statement.run(files.close())

    asking = asyncio.create_task(ask())
    deadline = time.monotonic() + 30
    while not list(temporary.glob("*/views.duckdb")):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert list_children()
    started = time.monotonic()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert time.monotonic() - started < 5
    assert not list_children()
    assert not list(temporary.iterdir())


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")


@pytest.mark.guarantee(102)
async def test_any_statement_ends_in_time_and_leaves_nothing(tmp_path: Path) -> None:
    report = await fuzz(15, 16, tmp_path)
    assert report.ended.total() == 16
    assert report.seconds_max < SECONDS_MAX
    assert report.rss_growth_bytes < RSS_GROWTH_MAX
    assert report.left == ()
