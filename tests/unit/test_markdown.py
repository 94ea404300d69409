"""Markdown of replies: what a page shows of an untrusted text."""

import time
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everlong.admin.web.pages.markdown import CHARS_MAX, render_markdown

TAGS = {
    *("p", "h3", "h4", "h5", "h6", "ul", "ol", "li", "pre", "code", "blockquote", "hr", "br"),
    *("table", "thead", "tbody", "tr", "th", "td", "em", "strong", "s", "a", "span"),
}
ATTRIBUTES = {
    *(("a", "href"), ("a", "rel"), ("a", "target"), ("a", "title"), ("ol", "start")),
    *(("code", "class"), ("th", "scope"), ("span", "class"), ("p", "class")),
}


class Reader(HTMLParser):
    """Collects the tags and attributes of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]


def assert_safe(html: str) -> None:
    found = Reader(html)
    assert set(found.tags) <= TAGS
    for tag, name, value in found.attributes:
        assert (tag, name) in ATTRIBUTES
        if name == "href":
            assert value.lower().startswith(("http://", "https://", "mailto:"))
    for tag in ("a",):
        rels = [value for each, name, value in found.attributes if (each, name) == (tag, "rel")]
        assert rels == ["noopener noreferrer"] * found.tags.count(tag)


PIECES = [
    *("<script>x</script>", "<img src=x onerror=y>", "[a](", "](", ")", "![", "javascript:x"),
    *("data:text/html,x", "//evil.example", "https://a.example", "mailto:a@b.c", "<", ">", '"'),
    *("`", "```\n", "\n", "\n\n", "| a | b |\n|:-:|--:|\n", "# ", "- ", "> ", "**", "&#106;", "\\"),
    *("[x]: javascript:y\n", "[x]", "\u202e", "\0", "<!--", "<a href=", "a", " "),
]


@pytest.mark.guarantee(103)
@example("[a]()")
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_any_text_has_only_known_tags_and_safe_links(text: str) -> None:
    assert_safe(render_markdown(text))


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("**a**", "<p><strong>a</strong></p>"),
        ("# a", "<h3>a</h3>"),
        ("##### a", "<h6>a</h6>"),
        ("[a](javascript:x)", "<p>[a](javascript:x)</p>"),
        ("[a](/threads/x)", "<p>[a](/threads/x)</p>"),
        ("![a](https://evil.example/x.png)", '<p><span class="image">image: a</span></p>'),
        ("<b>a</b>", "<p>&lt;b&gt;a&lt;/b&gt;</p>"),
        ("```py\n<b>\n```", '<pre><code class="language-py">&lt;b&gt;\n</code></pre>'),
    ],
)
def test_markdown_is_shown_without_html_images_and_other_links(text: str, html: str) -> None:
    assert render_markdown(text).strip() == html


@pytest.mark.parametrize("piece", ["[", "![", "[a](", "a\n===\n", "<", "*a ", "`", "> ", "- "])
def test_hostile_texts_are_rendered_in_bounded_time(piece: str) -> None:
    text = piece * (CHARS_MAX // len(piece))
    began = time.process_time()
    assert_safe(render_markdown(text))
    assert time.process_time() - began < 3


@pytest.mark.parametrize("prefix", ["", "> ", "- "])
@pytest.mark.parametrize("columns", [90, 1000])
def test_a_table_makes_no_more_cells_than_it_has_characters(prefix: str, columns: int) -> None:
    # A row of one cell is filled up to the columns of the head.
    rows = [f"{prefix}{'|a' * columns}", f"{prefix}{'|-' * columns}"]
    text = "\n".join([*rows, *["x"] * CHARS_MAX])[:CHARS_MAX]
    html = render_markdown(text)
    assert_safe(html)
    assert len(html) < 2 * CHARS_MAX


def test_a_table_among_other_text_is_rendered() -> None:
    rows = "".join(f"| {number} | some text |\n" for number in range(200))
    program = "a | b | c\n" * 50
    html = render_markdown(f"```sh\n{program}```\n\n| n | text |\n|--:|:--|\n{rows}")
    assert html.count("<tr>") == 201


def test_a_longer_text_is_shown_as_it_is() -> None:
    assert render_markdown("**" + "<" * CHARS_MAX).startswith('<p class="plain">**&lt;')
