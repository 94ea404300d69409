"""Renderer: makes pages from templates. All values are escaped: threads contain untrusted text."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jinja2
from fastapi import Request, Response

from everlong.admin.web.pages import charts, filters
from everlong.models.thread_ids import derive_id, show_id

HERE: Final = Path(__file__).parents[1]
# Characters of a message that a list shows. The journal shows the whole.
_TEXT_CHARS_MAX: Final = 1500


def make_environment() -> jinja2.Environment:
    """Return the Jinja environment with its filters."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        size=filters.format_size,
        number=filters.format_number,
        took=filters.format_ms,
        growth=filters.format_growth,
        exact=filters.format_iso_time,
        clock=filters.format_utc_time,
        gauge_value=filters.format_gauge,
        days=filters.format_days_left,
        limit_name=filters.name_limit,
        tone=filters.choose_tone,
        pretty=filters.indent_json,
        visible=filters.escape_hidden,
        mark=filters.make_mark,
        thread_url=filters.thread_url,
        shown_id=show_id,
        derived_id=derive_id,
        query=filters.quote_query,
        api=filters.api_url,
        cut=shorten,
        spark=charts.build_spark,
        utf8_bytes=lambda text: len(text.encode(errors="replace")),
    )
    environment.globals["release"] = hash_static_files()
    return environment


def shorten(text: str, chars_max: int = _TEXT_CHARS_MAX) -> str:
    """Return the beginning of a text, and the number of characters left out."""
    if len(text) <= chars_max:
        return text
    return f"{text[:chars_max]} … {len(text) - chars_max:,} more characters"


def hash_static_files() -> str:
    """Return a digest of the static files, so that browsers fetch changed ones."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted((HERE / "static").iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def make_etag(*parts: object) -> str:
    """Return an ETag that changes with any of the parts."""
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        digest.update(repr(part).encode(errors="replace") + b"\0")
    return f'"{digest.hexdigest()}"'


class Renderer:
    """Renders templates to responses."""

    def __init__(self) -> None:
        self._templates = make_environment()

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        """Return the rendered text of a template."""
        return self._templates.get_template(template).render(values)

    def render_page(
        self, template: str, values: Mapping[str, Any], status_code: int = 200
    ) -> Response:
        """Return a page, or a fragment without an ETag."""
        return _html(self.render(template, values), status_code)

    def render_fragment(
        self, request: Request, template: str, values: Mapping[str, Any]
    ) -> Response:
        """Return a fragment of a page with its ETag, or a 304."""
        text = self.render(template, values)
        return respond_with_etag(request, make_etag(text), text)


def respond_with_etag(request: Request, etag: str, text: str) -> Response:
    """Return a text with its ETag, or a 304 if the browser has it."""
    if is_current(request, etag):
        return Response(status_code=304, headers={"ETag": etag})
    response = _html(text)
    response.headers["ETag"] = etag
    return response


def is_current(request: Request, etag: str) -> bool:
    """Return whether the browser has the version of this ETag."""
    return request.headers.get("if-none-match", "").removeprefix("W/") == etag


def _html(text: str, status_code: int = 200) -> Response:
    # JSON may contain lone surrogates, which UTF-8 cannot encode.
    data = text.encode(errors="replace")
    return Response(data, status_code=status_code, media_type="text/html; charset=utf-8")
