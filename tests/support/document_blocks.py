"""Code blocks of the documents: where each stands, and which service it needs if no test runs it.

A block that a test cannot run is marked on the line before it: `<!-- not run: needs Docker -->`.
"""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
OUTPUT: Final = ("", "text")
"""Languages of what is no code: drawings, and what a program prints."""
_BLOCK: Final = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", flags=re.DOTALL | re.MULTILINE)
_MARK: Final = re.compile(r"<!-- not run: needs (.+) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    """Path of the page below the repository."""
    line: int
    language: str
    text: str
    before: str
    """The line of the page before the block; empty lines are skipped."""

    @property
    def needs(self) -> str:
        """The service that a marked block needs; empty for a block that a test runs."""
        mark = _MARK.fullmatch(self.before)
        return mark[1] if mark else ""

    @property
    def is_code(self) -> bool:
        return self.language not in OUTPUT

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def list_pages() -> list[str]:
    """Return the pages with blocks, as paths below the repository."""
    folders = [ROOT / name for name in ("docs", "examples")]
    found = sorted(path for folder in folders for path in folder.rglob("*.md"))
    names = ["README.md", "CONTRIBUTING.md", *(str(path.relative_to(ROOT)) for path in found)]
    return [name for name in names if any(read_blocks(name))]


def read_blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of a page in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        before = [line for line in text[: found.start()].splitlines() if line.strip()]
        yield Block(
            page=page,
            line=text.count("\n", 0, found.start()) + 1,
            language=found[2],
            text=textwrap.dedent(found[3]),
            before=before[-1].strip() if before else "",
        )


OWNERS: Final = {
    "docs/how-to/notifications.md": "tests/unit/test_notify.py",
    "docs/how-to/test-your-agent.md": "tests/server/test_testing_kit.py",
    "docs/reference/wire-format.md": "tests/unit/test_wire_examples.py",
    "examples/": "tests/server/test_examples.py",
}
"""Pages whose blocks a test of their own runs."""
DATA: Final = {
    ("docs/how-to/kubernetes.md", "yaml"): "tests/unit/test_kubernetes.py",
    ("docs/how-to/kubernetes.md", "dockerfile"): "tests/unit/test_document_blocks.py",
    ("docs/how-to/deploy.md", "dockerfile"): "tests/unit/test_document_blocks.py",
    ("docs/how-to/deploy.md", "json"): "tests/unit/test_document_blocks.py",
    ("docs/how-to/observe.md", "yaml"): "tests/unit/test_document_blocks.py",
    ("docs/how-to/temporal-cloud.md", "toml"): "tests/unit/test_document_blocks.py",
    ("docs/how-to/temporal-cloud.md", "terraform"): "tests/unit/test_temporal_cloud.py",
}
"""Blocks that are no commands, by page and language, and the file with the test that reads them."""
