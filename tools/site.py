"""Sphinx extension of the documentation site. It lets the pages stay plain Markdown.

- The navigation is made from the lists of links in the index pages: no `toctree` directives.
- Links that leave `docs/` lead to the repository.
- A comment `<!-- generated: NAME -->` is replaced by reference text of `tools.reference`.

A page that no index lists, and a link that leads nowhere, are warnings, and `make docs` fails on those.
"""

import os
import re
import tomllib
from pathlib import Path
from typing import Any, Final

from sphinx.application import Sphinx
from sphinx.util import logging

from tools import reference

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
_LOG: Final = logging.getLogger(__name__)
_FENCE: Final = re.compile(r"^(```+).*?^\1$", flags=re.DOTALL | re.MULTILINE)
_LISTED: Final = re.compile(r"^- \[[^\]]+\]\(([^):#]+)\.md\)", flags=re.MULTILINE)
_LINK: Final = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
_GENERATED: Final = re.compile(r"^<!-- generated: (\w+) -->$", flags=re.MULTILINE)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the extension; Sphinx calls it."""
    app.connect("source-read", _convert)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _convert(_: Sphinx, name: str, source: list[str]) -> None:
    page = DOCS / f"{name}.md"
    text = _GENERATED.sub(lambda found: reference.GENERATORS[found[1]](), source[0])
    text = _map_prose(text, lambda prose: _LINK.sub(lambda link: _lead_out(page, link), prose))
    if page.name == "index.md":
        text += build_navigation(text)
    source[0] = text


def build_navigation(text: str) -> str:
    """Return the directive that makes an index page's list of links its navigation."""
    names = "\n".join(_LISTED.findall(text))
    return f"\n\n```{{toctree}}\n:hidden:\n:maxdepth: 2\n\n{names}\n```\n"


def _map_prose(text: str, change: Any) -> str:
    """Apply `change` to all that is outside code blocks."""
    parts, at = [], 0
    for fence in _FENCE.finditer(text):
        parts += [change(text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, change(text[at:])])


def _lead_out(page: Path, link: re.Match[str]) -> str:
    """Return the link, and if its target is outside the site, with the address in the repository."""
    target = Path(os.path.normpath(page.parent / link[1]))
    if target.is_relative_to(DOCS):
        return link[0]
    if not target.exists():
        _LOG.warning("%s links to %s, which does not exist", page, link[1])
    kind = "tree" if target.is_dir() else "blob"
    return f"]({_read_repository()}/{kind}/main/{target.relative_to(ROOT)}"


def _read_repository() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    url: str = project["urls"]["Documentation"]
    return url.partition("/tree/")[0]
