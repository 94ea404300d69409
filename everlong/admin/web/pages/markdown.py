"""Markdown of replies as HTML. The text is untrusted.

Raw HTML is escaped, links lead to http, https and mailto only, and no image is loaded.
"""

import functools
from collections.abc import Sequence
from typing import Any, Final

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape

CHARS_MAX: Final = 8_000
"""Longest text that is rendered; a longer one is shown as it is."""
# The parser takes quadratic time for brackets: 8,000 characters of them take a second, and 500 brackets
# 20 ms. Other texts of this length take 0.3 s at most, and 10 ms in practice.
_BRACKETS_MAX: Final = 500
# It fills each row of a table up to the number of columns: 8,000 characters made 65,000 cells, in a
# second. Cells with text take two characters or more, so other tables of that length have fewer cells.
_CELLS_MAX: Final = 4_000
# The line below the head of a table, which is perhaps in a quotation or a list, has only these.
_DELIMITERS: Final = "-|:>*+.)0123456789 \t"
# Texts of 8,000 characters, and HTML of up to ten times that: 90 MB at most, and about 1 MB in practice.
_CACHED_MAX: Final = 1_024
_SCHEMES: Final = ("http://", "https://", "mailto:")
# A page has its title as h1 and its sections as h2.
_HEADING_LEVELS_ABOVE: Final = 2


class _Renderer(RendererHTML):
    """HTML without styles, images, and headings that would disturb the page's outline."""

    def image(
        self, tokens: Sequence[Token], idx: int, options: Any, env: Any
    ) -> str:  # markdown-it calls it by the token's type.
        """Return the description of an image. A request for it would show its server who reads."""
        token = tokens[idx]
        text = self.renderInlineAsText(token.children or [], options, env)
        return f'<span class="image">image: {escape(text or "without a description")}</span>'

    def renderToken(  # noqa: N802 - the name of markdown-it
        self, tokens: Sequence[Token], idx: int, options: Any, env: Any
    ) -> str:
        """Return the tag of a token."""
        token = tokens[idx]
        # The content security policy refuses inline styles: only tables have them, for alignment.
        token.attrs.pop("style", None)
        if token.type == "th_open":
            token.attrs["scope"] = "col"
        if token.type == "link_open":
            token.attrs["rel"] = "noopener noreferrer"
            token.attrs["target"] = "_blank"
            if not token.attrs.get("href"):  # The parser does not check an empty address: [a]().
                token.attrs.pop("href", None)
        if token.type in ("heading_open", "heading_close"):
            level = min(6, int(token.tag[1:]) + _HEADING_LEVELS_ABOVE)
            token.tag = f"h{level}"
        return super().renderToken(tokens, idx, options, env)


def _make_parser() -> MarkdownIt:
    parser = MarkdownIt("js-default", {"html": False}, renderer_cls=_Renderer)
    parser.validateLink = _is_allowed_link  # type: ignore[method-assign] # its documented hook
    return parser


def _is_allowed_link(url: str) -> bool:
    return url.strip().lower().startswith(_SCHEMES)


_PARSER: Final = _make_parser()


def _count_cells(text: str) -> int:
    """Return a bound of the cells that a text's tables have."""
    lines = text.replace("\r", "\n").split("\n")
    columns = (line.count("|") + 1 for line in lines if "|" in line and not line.strip(_DELIMITERS))
    return max(columns, default=0) * len(lines)


@functools.lru_cache(maxsize=_CACHED_MAX)
def render_markdown(text: str) -> Markup:
    """Return a text as HTML that is safe to place in a page."""
    if len(text) > CHARS_MAX or text.count("[") > _BRACKETS_MAX or _count_cells(text) > _CELLS_MAX:
        return Markup('<p class="plain">{}</p>').format(text)
    return Markup(_PARSER.render(text))  # noqa: S704 - the renderer escapes all text
