"""A child process with a log file, stopped by its handle. On Linux it never outlives its parent."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Self

from everlong.errors import DataDirUnusable, ProcessFailed

STOP_SECONDS_MAX: Final = 15.0
_POLL_SECONDS: Final = 0.02
_WAIT_SECONDS: Final = 0.2  # Slower than _POLL_SECONDS: a stack may be waited for during weeks.

# On Linux the kernel can kill a child when its parent dies, even by SIGKILL. The child requests that
# itself, before it execs the real program: running Python between fork and exec is not safe in a
# process that has threads. On other systems a killed parent leaves its children running.
_DIE_WITH_PARENT: Final = (
    "import ctypes, os, sys; "
    "ctypes.CDLL(None).prctl(1, 9); "  # PR_SET_PDEATHSIG, SIGKILL
    "os.getppid() == int(sys.argv[1]) and os.execvp(sys.argv[2], sys.argv[2:])"
)


class ManagedProcess:
    """A running child process. Use it as a context manager, or call `stop`.

    Start it from a thread that lives as long as the program: to the kernel, the end of that thread is
    the death of the parent.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], *, env: Mapping[str, str], log: Path
    ) -> None:
        self.name = name
        self.log = log
        if sys.platform == "linux":
            arguments = [sys.executable, "-SEc", _DIE_WITH_PARENT, str(os.getpid()), *arguments]
        with _open_log(log) as output:
            self._popen = subprocess.Popen(
                list(arguments),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C in a terminal reaches only the parent, which stops its children in order.
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """Exit code; negative for a signal; None while it runs."""
        return self._popen.poll()

    def output(self) -> str:
        """Return the output of the process so far."""
        return self.log.read_text(errors="replace")

    def stop(self) -> None:
        """Terminate the process (SIGTERM); kill it after `STOP_SECONDS_MAX`."""
        if self.returncode is None:
            self._popen.send_signal(signal.SIGTERM)
            try:
                self._popen.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        self._popen.kill()
        self._popen.wait(STOP_SECONDS_MAX)

    async def wait(self) -> int:
        """Wait for the process to end; return its exit code."""
        while (code := self.returncode) is None:  # noqa: ASYNC110 - a process has no event to await
            await asyncio.sleep(_WAIT_SECONDS)
        return code

    async def wait_for_output(self, text: str, seconds_max: float) -> str:
        """Wait for a complete line of output that contains `text`; return that line."""
        deadline = time.monotonic() + seconds_max
        while True:
            # Poll before reading: once the process has ended, its output is complete.
            ended = self.returncode is not None
            for line in self.output().splitlines(keepends=True):
                if text in line and line.endswith("\n"):
                    return line.rstrip("\n")
            if ended:
                raise self.make_exit_error()
            if time.monotonic() > deadline:
                raise ProcessFailed(
                    f"the {self.name} did not print {text!r} within {seconds_max:.0f} s. Its log is "
                    f"{self.log}"
                )
            await asyncio.sleep(_POLL_SECONDS)

    def make_exit_error(self) -> ProcessFailed:
        """Return the error for a process that ended by itself, with its last output."""
        lines = [line for line in self.output().splitlines() if line.strip()]
        last = "\n  ".join(line[:300] for line in lines[-5:]) or "(nothing)"
        return ProcessFailed(
            f"the {self.name} ended by itself with exit code {self.returncode}. Its last output:\n"
            f"  {last}\nThe full log is {self.log}"
        )


def _open_log(log: Path) -> BinaryIO:
    try:
        return log.open("wb")
    except OSError as error:
        raise DataDirUnusable(
            f"the log {log} cannot be written: {error.strerror}. Make it writable, or choose another "
            "directory with --data-dir."
        ) from error
