"""Runs the codec benchmark, prints the figures, and fails if a bound does not hold."""

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

from bench import amplification, codec, many_threads, server, shapes, stored_bytes
from bench.objects import Place
from bench.report import Report, finish, machine
from bench.transcripts import measure_transcripts
from bench.worker import VARIANTS
from everlong.embedded import start_server
from tests.support.s3_server import start_s3_server

T = TypeVar("T")

_PARTS: Final = ("codec", "loop", "threads", "shapes", "stored", "server")
_NAMES: Final = {variant: variant.lower().replace(" ", "-") for variant in VARIANTS}


def main(arguments: Sequence[str]) -> int:
    """Run the requested parts; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", choices=_PARTS, help="one part (docs/benchmarks.md)")
    parser.add_argument(
        "--transcripts",
        type=Path,
        metavar="DIR",
        help="only replay the recorded sessions (.jsonl of pi or OpenClaw) in a directory",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="and as tables in Markdown")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="a short run; few bounds are judged")
    length.add_argument(
        "--long", action="store_true", help="longer loops and more shapes; see the docs"
    )
    parser.add_argument("--store", choices=("s3", "file"), default="s3", help="for the server part")
    asked = parser.parse_args(arguments)
    about = machine()
    if asked.transcripts is not None:
        reports = [asyncio.run(measure_transcripts(asked.transcripts))]
    else:
        parts = [asked.only] if asked.only else _PARTS
        reports = [_measure(part, asked) for part in parts]
    return finish(about, reports, asked.json, asked.markdown)


def _measure(part: str, asked: argparse.Namespace) -> Report:
    """Run one part at the requested size."""
    run = {
        "codec": _measure_codec,
        "loop": _measure_loop,
        "threads": _measure_threads,
        "shapes": _measure_shapes,
        "stored": _measure_stored,
        "server": _measure_server,
    }[part]
    return asyncio.run(run(asked))


async def _measure_codec(asked: argparse.Namespace) -> Report:
    return await codec.measure_codec(_choose(asked, codec.QUICK, codec.Size(), codec.Size()))


async def _measure_loop(asked: argparse.Namespace) -> Report:
    size = _choose(asked, amplification.QUICK, amplification.Size(), amplification.LONG)
    return await amplification.measure_amplification(size)


async def _measure_threads(asked: argparse.Namespace) -> Report:
    size = _choose(asked, many_threads.QUICK, many_threads.Size(), many_threads.LONG)
    return await many_threads.measure_many_threads(size)


async def _measure_shapes(asked: argparse.Namespace) -> Report:
    return await shapes.measure_shapes(_choose(asked, shapes.QUICK, shapes.Size(), shapes.LONG))


async def _measure_stored(asked: argparse.Namespace) -> Report:
    size = _choose(asked, stored_bytes.QUICK, stored_bytes.Size(), stored_bytes.LONG)
    with tempfile.TemporaryDirectory(prefix="everlong-bench-") as name:
        running = await start_server(Path(name))
        with running.process:
            return await stored_bytes.measure_stored(running.address, Path(name), size)


async def _measure_server(asked: argparse.Namespace) -> Report:
    size = _choose(asked, server.QUICK, server.Size(), server.LONG)
    return await _measure_through_server(size, asked.store)


def _choose(asked: argparse.Namespace, quick: T, usual: T, long: T) -> T:
    """Choose the size that the flags request."""
    return quick if asked.quick else long if asked.long else usual


async def _measure_through_server(size: server.Size, kind: str) -> Report:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="everlong-bench-")))
        running = await start_server(folder)
        stack.enter_context(running.process)
        places = make_folders(folder) if kind == "file" else start_bucket(folder, stack)
        return await server.measure_server(running.address, places, folder, size)


def make_folders(folder: Path) -> dict[str, Place]:
    """Return a directory for each variant."""
    return {variant: Place((folder / name).as_uri()) for variant, name in _NAMES.items()}


def start_bucket(folder: Path, stack: contextlib.ExitStack) -> dict[str, Place]:
    """Start an S3 server, which `stack` stops; return a prefix for each variant."""
    data = folder / "weed"
    data.mkdir()
    weed = stack.enter_context(start_s3_server(data))
    return {variant: Place(weed.url(name), weed.environ) for variant, name in _NAMES.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
