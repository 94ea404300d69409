"""Runner of the `everlong` command in a process of its own, forked from one that has imported it.

A command takes 1.4 s of CPU to import its modules, and a fork of a process that has them a few
milliseconds. Arguments, environment, directory, output and exit code are those of a real process.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, BinaryIO

from everlong.cli.app import COMMANDS

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    sorted({f"everlong.cli.{module}" for module, _ in COMMANDS.values()}),
)


def run_command(
    *arguments: str, cwd: Path, env: Mapping[str, str], seconds_max: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run `everlong ARGUMENTS` with its own environment variables on top of this process's."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = _FORKS.Process(
            target=_run,
            args=(
                list(arguments),
                str(cwd),
                {**os.environ, **env},
                DupFd(out.fileno()),
                DupFd(err.fileno()),
            ),
        )
        process.start()
        try:
            process.join(seconds_max)
            code = process.exitcode
            if code is None:
                raise subprocess.TimeoutExpired(["everlong", *arguments], seconds_max)
        finally:
            if process.exitcode is None:
                process.kill()
                process.join()
            process.close()
        return subprocess.CompletedProcess(
            ["everlong", *arguments], code, _read_text(out), _read_text(err)
        )


def _run(
    arguments: list[str],
    cwd: str,
    environ: dict[str, str],
    out: Any,
    err: Any,
) -> None:
    # `out` and `err` are results of `DupFd`, whose type is private to `multiprocessing`.
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    for number, duplicate in ((1, out), (2, err)):
        descriptor = duplicate.detach()
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    sys.argv = ["everlong", *arguments]
    from everlong.__main__ import main

    main()


def _read_text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode()
