"""The documentation site: its navigation, its generated pages, and what a build of it would request."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from everlong.telemetry import METRICS, spans
from everlong.telemetry.span_table import CONTENTS, IDENTITY, SPANS
from tools import reference

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_every_page_is_listed_by_the_index_of_its_folder() -> None:
    """The navigation is made from these lists. A page that is in none of them breaks `make docs`."""
    unlisted = []
    for index in DOCS.rglob("index.md"):
        listed = set(
            re.findall(r"^- \[[^\]]+\]\(([^)#]+)\)", index.read_text(), flags=re.MULTILINE)
        )
        pages = {each.name for each in index.parent.glob("*.md")} - {"index.md"}
        pages |= {f"{each.parent.name}/index.md" for each in index.parent.glob("*/index.md")}
        unlisted += [f"{index.parent.name}/{name}" for name in pages - listed]
    assert unlisted == []


def test_every_mark_of_a_generated_part_has_a_generator() -> None:
    marks = [
        mark
        for page in DOCS.rglob("*.md")
        for mark in re.findall(r"<!-- generated: (.*) -->", page.read_text())
    ]
    assert sorted(marks) == sorted(reference.GENERATORS)


def test_every_setting_is_in_the_settings_page() -> None:
    sources = [
        (ROOT / "everlong" / name).read_text() for name in ("config.py", "worker_options.py")
    ]
    read = set(re.findall(r'"((?:EVERLONG|OTEL)_[A-Z_]+)"', "".join(sources)))
    documented = set(re.findall(r"`([A-Z_]+)`", reference.generate_settings()))
    assert len(read) > 30
    assert read - documented == {"OTEL_SDK_DISABLED"}, "which the page's own text describes"


def test_every_metric_is_in_the_metrics_page() -> None:
    text = reference.generate_metrics()
    assert [each.name for each in METRICS if f"`{each.name}`" not in text] == []


def test_every_span_and_attribute_of_the_code_is_in_the_table() -> None:
    """Literals of attributes, in the files that emit spans; names of metrics are no attributes."""
    files = [
        *("telemetry/spans.py", "telemetry/steps.py", "activities/model_calls.py"),
        *("interceptors/resume.py", "codecs/offload.py", "client/archives.py", "sweep/sweep.py"),
    ]
    text = "".join((ROOT / "everlong" / name).read_text() for name in files)
    text = text.replace("{RESUME}", spans.RESUME)
    used = set(re.findall(r'"((?:everlong|gen_ai|error)\.[a-z_.]+)"', text))
    labels = {label for each in METRICS for label in each.labels}
    used -= {each.name for each in METRICS} | (labels - {spans.ERROR})
    described = {*IDENTITY, *CONTENTS, *(name for each in SPANS for name in each.attributes)}
    named = {each.name.partition(" ")[0] for each in SPANS}
    assert used - described - named - {spans.RESUME} == set()
    assert len(used) > 60
    assert {spans.INVOKE_AGENT, spans.CHAT, spans.EXECUTE_TOOL} <= named


def test_every_span_is_in_the_metrics_page() -> None:
    text = reference.generate_spans()
    assert [each.name for each in SPANS if f"`{each.name}`" not in text] == []


def test_every_command_and_its_options_are_in_the_command_line_page() -> None:
    text = reference.generate_cli()
    assert "### everlong approve\n" in text
    assert "--reason" in text.partition("### everlong approve\n")[2].partition("\n### ")[0]


def test_every_route_and_the_type_of_its_answer_are_in_the_api_page() -> None:
    text = reference.generate_http()
    section = text.partition("### GET /api/v1/threads\n")[2].partition("\n### ")[0]
    assert "200: [`ThreadPage`](#threadpage)" in section
    assert "### ThreadPage\n" in text


class Requests(HTMLParser):
    """Collects what a browser would load for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = dict(attrs)
        if tag == "link" and of.get("rel") in ("canonical", "next", "prev", "search", "index"):
            return
        names = ("src", "srcset", "href", "data") if tag != "a" else ()
        self.found += [of[name] or "" for name in names if name in of]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_site_builds_without_warnings_and_its_pages_request_nothing_from_elsewhere(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 25
    outside = set()
    for page in pages:
        requests = Requests()
        requests.feed(page.read_text())
        assert any("furo" in each for each in requests.found), f"{page}: the parser finds nothing"
        outside |= {each for each in requests.found if re.match(r"(https?:)?//", each)}
    styles = [each.read_text() for each in tmp_path.rglob("*.css")]
    outside |= {
        each
        for text in styles
        for each in re.findall(r"(?:url\(|@import )['\"]?(https?:[^)'\"]+)", text)
    }
    assert outside == set()
    assert "Search.setIndex" in (tmp_path / "searchindex.js").read_text()
