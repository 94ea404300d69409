"""Runner of the code blocks of a page, in order, in one directory, as a reader would run them.

`everlong` runs in forked processes that have imported it. What a reader cannot mean literally is
replaced: addresses, buckets, keys. `everlong dev` becomes a worker on the server of the test.
"""

import ast
import asyncio
import contextlib
import dataclasses
import importlib.util
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb
from packaging.requirements import Requirement

from everlong.config import load_settings
from everlong.embedded import ManagedProcess
from everlong.embedded.server import find_free_port, find_temporal
from everlong.storage.encryption_keys import parse_keys
from everlong.worker_options import READY
from tests.support.document_blocks import ROOT, Block
from tests.support.forked_command import run_command

_SECONDS_MAX: Final = 60.0
_FILE: Final = re.compile(r"`(\w+\.py)`")
_SHELL: Final = frozenset("|<>;")
# Numbers, ids, paths and hosts differ from run to run, and which of two clocks is ahead.
_VARIABLE: Final = re.compile(
    r"file://\S+|[\w.]+@[\w.-]+|(?<=-)[0-9a-f]{4,12}\b|\b[0-9a-f]{16,64}\b|[\d,.]*\d|ahead of|behind"
    r"|(?<=namespace )[\w-]+"
)
_LONG_ID: Final = re.compile(r"\b[0-9a-f]{16}\b")


@dataclasses.dataclass
class PageRunner:
    """Runs the blocks of one page. Use it as an asynchronous context manager."""

    folder: Path
    environ: dict[str, str]
    """Variables of all commands, on top of those of this process."""
    replacements: dict[str, str]
    """Texts of the page, and what stands for them here."""
    exit_codes: Mapping[str, int]
    """Exit codes of commands of the page that fail, as the page says; 0 otherwise."""
    asks_for_approval: bool
    """Whether messages of the page wait for an approval that a later command gives."""
    names: dict[str, Any] = dataclasses.field(default_factory=lambda: {"__name__": "page"})
    """Names of the page's Python."""

    def __post_init__(self) -> None:
        self._sent: list[asyncio.Task[None]] = []
        self._worker: ManagedProcess | None = None
        self.ran: list[str] = []
        """Lines of shell that were run."""

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator["PageRunner"]:
        """Wait for the messages that were sent, and stop the worker, at the end."""
        try:
            yield self
            await asyncio.wait_for(asyncio.gather(*self._sent), _SECONDS_MAX)
        finally:
            for each in self._sent:
                each.cancel()
            self._stop_worker()

    async def run(self, block: Block) -> None:
        """Run a block; raise `AssertionError` if it does not do what the page says."""
        text = self._replace(block.text)
        match block.language:
            case "python":
                await self._run_python(block, text)
            case "console":
                for command, shown in _split_console(text):
                    # Later commands name the ids that earlier ones have printed.
                    printed = await self._run_line(self._replace(command))
                    self.replacements |= _compare(printed, shown)
            case "sh" | "bash":
                for line in _split_lines(text):
                    await self._run_line(line)
            case "sql":
                # DuckDB reads the file that an earlier command of the page has written.
                with duckdb.connect() as database:
                    for statement in duckdb.extract_statements(text):
                        assert database.execute(statement).fetchall() is not None
            case _:
                raise AssertionError(f"{block.place}: no test runs {block.language}")

    def _replace(self, text: str) -> str:
        for old, new in self.replacements.items():
            text = text.replace(old, new)
        return text

    async def _run_python(self, block: Block, text: str) -> None:
        named = _FILE.findall(block.before)
        if len(named) == 1:
            (self.folder / named[0]).write_text(text)
            if named[0] != "app.py":
                return
        # The snippets of a page go on with the names of its `app.py`.
        code = compile(text, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, self.names)
        if inspect.iscoroutine(result):
            await asyncio.wait_for(result, _SECONDS_MAX)

    async def _run_line(self, line: str) -> str:
        self.ran.append(line)
        words = shlex.split(line, comments=True)
        if _SHELL.intersection(words) or "$(" in line:
            return await self._run_shell(line)
        printed = ""
        for command in _split_list(words):
            printed += await self._run_words(line, command)
        return printed

    async def _run_words(self, line: str, words: Sequence[str]) -> str:
        given = dict(word.split("=", 1) for word in _take_variables(words))
        program, *arguments = words[len(given) :]
        match program:
            case "export":
                await self._export(line)
            case "everlong":
                return await self._run_everlong(line, arguments, {**self.environ, **given})
            case "pip":
                _check_requirements(arguments)
            case "make":
                # Its targets take minutes: what they would run is all that is asked here.
                return await self._run_shell(
                    shlex.join(["make", "-n", "-C", str(ROOT), *arguments])
                )
            case "python" if arguments[0] == "-m" and arguments[1].startswith("bench."):
                assert importlib.util.find_spec(arguments[1]), "it takes minutes: it exists"
            case "source" | "python3":
                assert words in (
                    ["source", ".venv/bin/activate"],
                    ["python3", "-m", "venv", ".venv"],
                )
            case _:
                return await self._run_shell(line)
        return ""

    async def _export(self, line: str) -> None:
        marker = "--- environment"
        shown = await self._run_shell(f"{line}\necho '{marker}'; env")
        exported = re.findall(r"(?<=\s)([A-Z_]+)=", line)
        after = shown.partition(marker)[2]
        found = dict(each.split("=", 1) for each in after.splitlines() if "=" in each)
        self.environ |= {name: found[name] for name in exported}
        settings = load_settings({**os.environ, **self.environ})
        if settings.keys:
            parse_keys(settings.keys)

    async def _run_shell(self, text: str) -> str:
        folders = [str(Path(sys.executable).parent), str(Path(find_temporal()).parent)]
        path = os.pathsep.join([*folders, os.environ["PATH"]])
        done = await asyncio.to_thread(
            subprocess.run,
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env={**os.environ, **self.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS_MAX,
            check=False,
        )
        # Native threads of the SDK sometimes crash an interpreter that shuts down, also without us.
        is_crash_at_exit = "Fatal Python error: PyGILState_Release" in done.stderr
        assert done.returncode == 0 or is_crash_at_exit, f"{text}\n{done.stdout}{done.stderr}"
        return done.stdout

    async def _run_everlong(
        self, line: str, arguments: Sequence[str], environ: Mapping[str, str]
    ) -> str:
        verb = arguments[0]
        if verb in ("dev", "worker"):
            await self._start_worker(arguments, environ)
            return ""
        if verb == "serve" and line.partition("  #")[0].strip() not in self.exit_codes:
            await self._serve(arguments, environ)
            return ""
        if verb == "send" and self.asks_for_approval and "--no-wait" not in arguments:
            # A reader approves in another terminal.
            self._sent.append(asyncio.create_task(self._send(line, arguments, environ)))
            return ""
        if verb in ("approvals", "approve", "deny") and self._sent:
            await self._wait_for_approval(environ)
        return await self._finish(line, arguments, environ)

    async def _finish(self, line: str, arguments: Sequence[str], environ: Mapping[str, str]) -> str:
        done = await asyncio.to_thread(
            run_command, *arguments, cwd=self.folder, env=environ, seconds_max=_SECONDS_MAX
        )
        plain = line.partition("  #")[0].strip()
        expected = self.exit_codes.get(plain, 0)
        assert done.returncode == expected, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    async def _send(self, *command: Any) -> None:
        await self._finish(*command)

    async def _wait_for_approval(self, environ: Mapping[str, str]) -> None:
        async with asyncio.timeout(_SECONDS_MAX):
            while "since" not in await self._finish("", ["approvals"], environ):
                await asyncio.sleep(0.1)

    async def _start_worker(self, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        self._stop_worker()
        verb, *others = arguments
        if verb == "dev":
            others = [each for each in others if not each.startswith("-")]
        log = self.folder / ".everlong" / "dev" / "worker.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        self._worker = ManagedProcess(
            "worker",
            [sys.executable, "-m", "everlong", "worker", *(others or ["everlong.demo:agent"])],
            env={**os.environ, **environ, "PYTHONPATH": f"{self.folder}{os.pathsep}{ROOT}"},
            log=log,
        )
        await self._worker.wait_for_output(READY, _SECONDS_MAX)

    def _stop_worker(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    async def _serve(self, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "everlong", *arguments, "--port", str(find_free_port())]
        log = self.folder / "serve.log"
        with ManagedProcess("serve", command, env={**os.environ, **environ}, log=log) as process:
            await process.wait_for_output("dashboard", _SECONDS_MAX)


def _take_variables(words: Sequence[str]) -> list[str]:
    """Return the assignments before a command."""
    found = []
    for word in words:
        if not re.match(r"[A-Z_]+=", word):
            break
        found.append(word)
    return found


def _split_lines(text: str) -> list[str]:
    """Return the commands of a block, without lines that are comments only."""
    joined = text.replace("\\\n", " ")
    return [line for line in joined.splitlines() if shlex.split(line, comments=True)]


def _split_list(words: Sequence[str]) -> list[list[str]]:
    """Split the words of a line at `&&`; a last `&` is dropped."""
    found: list[list[str]] = [[]]
    for word in words:
        if word == "&&":
            found.append([])
        elif word != "&":
            found[-1].append(word)
    return found


def _split_console(text: str) -> list[tuple[str, str]]:
    """Return the commands of a session at a terminal, each with what the page shows of its output."""
    parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)
    assert not parts[0], "a session begins with a command"
    return list(zip(parts[1::2], parts[2::2], strict=True))


def _check_requirements(arguments: Sequence[str]) -> None:
    """Check that pip could read the requirements, and that the package has their extras."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    verb, *words = arguments
    assert verb == "install"
    editable = "-e" in words
    for word in words:
        if not word.startswith("-"):
            found = Requirement(word.replace(".", "everlong", 1) if editable else word)
            if found.name == "everlong":
                assert set(found.extras) <= set(project["optional-dependencies"])


def _compare(printed: str, shown: str) -> dict[str, str]:
    """Check output against what the page shows; a line `...` stands for any lines.

    Return the long ids of the page, and what stands for them here. A command asks nothing without a
    terminal, so the page's questions are left out.
    """
    shown = re.sub(r"^.*\[y/N\]: y\n", "", shown, flags=re.MULTILINE)
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else f"{re.escape(_mask(line))}\n"
        for line in shown.splitlines()
    )
    masked = "".join(f"{_mask(line)}\n" for line in printed.splitlines())
    assert re.fullmatch(pattern, masked), f"the page shows:\n{shown}\nit prints:\n{printed}"
    return dict(zip(_LONG_ID.findall(shown), _LONG_ID.findall(printed), strict=False))


def _mask(line: str) -> str:
    return " ".join(_VARIABLE.sub("#", line).split())
