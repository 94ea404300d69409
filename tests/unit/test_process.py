import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from everlong.embedded import ManagedProcess
from everlong.embedded.stack import lock_data_dir
from everlong.errors import DataDirUnusable, ProcessFailed

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]


def start(tmp_path: Path, arguments: list[str]) -> ManagedProcess:
    return ManagedProcess("sleeper", arguments, env=os.environ, log=tmp_path / "log")


def has_ended(pid: int) -> bool:
    """Return whether a process has ended; a zombie counts as ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while not has_ended(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


async def test_a_process_is_stopped_when_its_block_ends(tmp_path: Path) -> None:
    with start(tmp_path, SLEEP) as process:
        assert await process.wait_for_output("up", 10) == "up"
        assert process.returncode is None
    assert process.returncode == -signal.SIGTERM
    process.stop()  # A second time is harmless.
    assert has_ended(process.pid)


async def test_a_process_that_ignores_the_request_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everlong.embedded.process.STOP_SECONDS_MAX", 0.3)
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); "
    with start(tmp_path, [sys.executable, "-c", code + "time.sleep(60)"]) as process:
        await process.wait_for_output("up", 10)
    assert process.returncode == -signal.SIGKILL


async def test_the_exit_of_a_process_is_reported(tmp_path: Path) -> None:
    code = "import sys; print('cannot go on'); sys.exit(7)"
    with start(tmp_path, [sys.executable, "-c", code]) as process:
        with pytest.raises(ProcessFailed, match=r"(?s)exit code 7.*cannot go on.*log"):
            await process.wait_for_output("ready", 10)
        assert await process.wait() == 7


async def test_waiting_for_output_has_a_bound(tmp_path: Path) -> None:
    with start(tmp_path, SLEEP) as process:
        with pytest.raises(ProcessFailed, match="did not print 'ready' within"):
            await process.wait_for_output("ready", 0.3)


@pytest.mark.guarantee(85)
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_a_process_does_not_outlive_a_parent_that_was_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from pathlib import Path; "
        "from everlong.embedded import ManagedProcess; "
        "child = ManagedProcess('c', ['sleep', '60'], env=os.environ, log=Path(sys.argv[1])); "
        "print(child.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE
    )
    try:
        assert parent.stdout is not None
        child_pid = int(parent.stdout.readline())
        deadline = time.monotonic() + 60
        while b"sleep" not in Path(f"/proc/{child_pid}/cmdline").read_bytes()[:6]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        parent.kill()
        parent.communicate()
    wait_until_gone(child_pid)


@pytest.mark.guarantee(83)
def test_a_data_directory_has_one_stack_at_a_time(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with lock_data_dir(data), pytest.raises(DataDirUnusable, match="another Everlong stack"):
        with lock_data_dir(data):
            pass
    with lock_data_dir(data):
        pass


def test_a_data_directory_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(DataDirUnusable, match="EVERLONG_DATA_DIR"),
        lock_data_dir(tmp_path / "file/data"),
    ):
        pass
