"""Pages from templates. Whatever a thread, an agent or a person wrote is escaped."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jinja2
from fastapi import Request, Response

from everlong.admin.web.pages import charts, filters
from everlong.models.thread_ids import derive_id, show_id

HERE: Final = Path(__file__).parents[1]
# What of a message a page shows, where the whole of it is a click away.
_TEXT_CHARS_MAX: Final = 1500


def environment() -> jinja2.Environment:
    """Return the templates, with the words that they use."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        size=filters.size,
        number=filters.number,
        took=filters.took,
        growth=filters.growth,
        exact=filters.exact,
        clock=filters.clock,
        gauge_value=filters.gauge_value,
        days=filters.days,
        limit_name=filters.limit_name,
        tone=filters.tone,
        pretty=filters.pretty,
        visible=filters.visible,
        mark=filters.mark,
        thread_url=filters.thread_url,
        shown_id=show_id,
        derived_id=derive_id,
        query=filters.query,
        api=filters.api_url,
        cut=cut,
        spark=charts.spark,
        utf8_bytes=lambda text: len(text.encode(errors="replace")),
    )
    made.globals["release"] = release()
    return made


def cut(text: str, chars_max: int = _TEXT_CHARS_MAX) -> str:
    """Return the beginning of a text, and how much more there is."""
    if len(text) <= chars_max:
        return text
    return f"{text[:chars_max]} … {len(text) - chars_max:,} more characters"


def release() -> str:
    """Return a name for these very files, so that browsers fetch changed ones again."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted((HERE / "static").iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def etag_of(*parts: object) -> str:
    """Return a tag that is equal as long as all of these are."""
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        digest.update(repr(part).encode(errors="replace") + b"\0")
    return f'"{digest.hexdigest()}"'


class Renderer:
    """Makes responses of templates."""

    def __init__(self) -> None:
        self._templates = environment()

    def text(self, template: str, values: Mapping[str, Any]) -> str:
        """Return a template's text."""
        return self._templates.get_template(template).render(values)

    def page(self, template: str, values: Mapping[str, Any], status_code: int = 200) -> Response:
        """Return a page, or a part of one."""
        return _html(self.text(template, values), status_code)

    def fragment(self, request: Request, template: str, values: Mapping[str, Any]) -> Response:
        """Return a part of a page, or nothing if the browser has this very part."""
        text = self.text(template, values)
        return tagged(request, etag_of(text), text)


def tagged(request: Request, etag: str, text: str) -> Response:
    """Return a text under its tag, or nothing if the browser has it."""
    if is_known(request, etag):
        return Response(status_code=304, headers={"ETag": etag})
    response = _html(text)
    response.headers["ETag"] = etag
    return response


def is_known(request: Request, etag: str) -> bool:
    """Tell whether the browser has what this tag names."""
    return request.headers.get("if-none-match", "").removeprefix("W/") == etag


def _html(text: str, status_code: int = 200) -> Response:
    # A lone surrogate, which JSON may hold, is no character that a browser can be sent.
    data = text.encode(errors="replace")
    return Response(data, status_code=status_code, media_type="text/html; charset=utf-8")
