"""Pseudo-terminal that runs one command, types into it, and keeps what it prints."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_ROWS, _COLUMNS = 40, 100
# Sequences that move the cursor, set colours or a mode.
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07]*\x07")


class PseudoTerminal:
    """A terminal that runs one command and keeps its output."""

    def __init__(
        self, command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self._end, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            command,
            stdin=end,
            stdout=end,
            stderr=end,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            # Ctrl-C is a signal for the process only if this is its controlling terminal.
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(end)
        self.raw = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)

    @property
    def printed(self) -> str:
        """What was printed, without control sequences."""
        return _CONTROL.sub("", self.raw).replace("\r\n", "\n")

    def wait_for(self, pattern: str, seconds: float = 30, *, after: int = 0) -> re.Match[str]:
        """Read until a pattern was printed, behind a number of characters."""
        deadline = time.monotonic() + seconds
        while not (found := re.compile(pattern).search(self.printed, after)):
            assert time.monotonic() < deadline, self.printed
            assert self.read(), self.printed
        return found

    def read(self) -> bool:
        """Take in what was printed within a second; return whether the command may print more."""
        if not select.select([self._end], [], [], 1)[0]:
            return True
        try:
            self.raw += os.read(self._end, 65536).decode(errors="replace")
        except OSError:  # The command has ended.
            return False
        return True

    def type(self, keys: str) -> None:
        """Type keys: `\\r` is Enter, `\\x03` Ctrl-C, `\\x04` Ctrl-D."""
        os.write(self._end, keys.encode())

    def wait_for_end(self, seconds: float = 60) -> int:
        """Read until the command ends, and return its exit code."""
        deadline = time.monotonic() + seconds
        while self.read() and time.monotonic() < deadline:
            pass
        return self.process.wait(max(1.0, deadline - time.monotonic()))
