"""Paths, ids and numbers in a text, as they stand there.

Texts are split into words first and each word is judged by itself, so that a text of any shape takes
one pass: no expression here runs over more than a word. What is not ASCII counts as a letter,
whichever Unicode a Python knows.
"""

import functools
import re
from collections.abc import Iterator
from typing import Final

# What no path, id or number goes across.
_SPLIT: Final = re.compile("[\\s\"'`<>|,;()\\[\\]{}\u2018-\u201f\u00ab\u00bb]+")
# The same, but for the commas within a number.
_NUMBER_SPLIT: Final = re.compile(f"(?:{_SPLIT.pattern.replace(',', '')}|,(?![0-9]))+")
_PUNCTUATION: Final = ",:;!?*=&^$"
_WORD_CHARS_MAX: Final = 300
# Two plain words with a slash are a path if they are long: `docs/reference`, not `and/or`.
_PLAIN_PATH_CHARS_MIN: Final = 9


def word_set(text: str) -> frozenset[str]:
    """Return the words of a list that is written as one text."""
    return frozenset(text.split())


_EXTENSIONS: Final = word_set(
    "avro bak bat c cc cfg cjs class conf cpp cs css csv dart db diff dll doc docx dockerfile eml env"
    " erb ex exe go gradle gz h hcl hpp htm html ics ini ipynb jar java jpeg jpg js json jsonl jsx key"
    " kt lock log lua md mdx mjs mp4 msg msi ndjson orc out parquet patch pcap pdf pem php pkl pl"
    " plist png ppt pptx proto ps1 pub py pyi pyx r rb rego rs rst sass scala scss sh so sql sqlite"
    " svg swift tar tex tf tfstate tfvars tgz tmpl toml tpl ts tsv tsx txt vue wal wasm whl xls xlsx"
    " xml yaml yml zig zip zst"
)
_LETTER: Final = re.compile(r"[A-Za-z\x80-\U0010ffff]")
_DIGIT: Final = re.compile(r"[0-9]")
# Where in a file: a line, a column, a test.
_WITHIN: Final = re.compile(r"(?::[0-9]+){1,2}:?$|::?$|::[A-Za-z_].*$|#L[0-9]+(?:-L?[0-9]+)?$")
_WINDOWS: Final = re.compile(r"(?:[A-Za-z]:[\\/]|\\\\[A-Za-z0-9_.$-]+\\).")
_COMPONENTS: Final = re.compile(
    r"[A-Za-z0-9_.@+~%:*$#\x80-\U0010ffff-]*(?:/[A-Za-z0-9_.@+~%:*$#\x80-\U0010ffff-]*)+"
)
_STEM: Final = re.compile(r"[A-Za-z0-9_.@+~\x80-\U0010ffff-]+")
_HIDDEN: Final = re.compile(r"\.[A-Za-z][A-Za-z0-9_]+")
_ROOTS: Final = ("/", "./", "../", "~/", "$")
_ID: Final = re.compile(
    r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"  # a UUID
    r"|(?:0x|sha[0-9]{1,3}:|[a-z]{1,4}[-_:])?[0-9a-f]{7,128}|[0-9A-F]{8,64}"
    r"|[A-Z][A-Z0-9]{1,11}(?:-[A-Z]{1,6})?-[0-9]{1,10}(?:-[0-9]+)*"  # a ticket
)
_NAMED: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_.:#~][A-Za-z0-9]+)+")
_SOLID: Final = re.compile(r"[A-Za-z0-9]{8,64}")
_EMAIL: Final = re.compile(r"[A-Za-z0-9_.+-]{1,64}@[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)+")
_ADDRESS: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?:[:/][0-9]{1,5})?")
_DATE: Final = re.compile(r"[0-9]{2,4}[-/.:][0-9]{2}[-/.:][0-9]{2}\S*|[0-9]{8}T[0-9]+Z?")
_NUMBERED: Final = re.compile(r"#[0-9]{2,10}")
_NUMBER: Final = re.compile(
    r"[$€£¥~±+<>≤≥-]{0,2}[0-9]+(?:[.,:_/-][0-9]+)*(?:[%‰µ°x+]|[A-Za-z]{1,4}(?:/[a-z]{1,3})?)?"
)


def words(text: str) -> Iterator[str]:
    """Yield the different words of a text that may be a path or an id, in order."""
    for word in dict.fromkeys(_SPLIT.split(text)):
        if 4 <= len(word) <= _WORD_CHARS_MAX and not word.isalpha() and "…" not in word:
            yield word


def find_refs(text: str, *, bulk: bool) -> list[str]:
    """Return the paths and ids of a text, each once. In bulk output an id has to look like one."""
    found: dict[str, None] = {}
    for word in words(text):
        for ref in _refs_of(word, bulk):
            found[ref] = None
    return list(found)


def find_numbers(text: str) -> list[tuple[str, str]]:
    """Return the numbers of a text, and each with the words around it."""
    parts = [part.strip("." + _PUNCTUATION) for part in _NUMBER_SPLIT.split(text)]
    parts = [part for part in parts if part]
    found = []
    for at, part in enumerate(parts):
        name, sign, value = part.rpartition("=")
        if len(value) <= 40 and _NUMBER.fullmatch(value):
            before = f"{name}{sign}" if sign else _neighbour(parts, at - 1)
            snippet = f"{before}{value}" if sign else f"{before} {value}"
            found.append((value, f"{snippet} {_neighbour(parts, at + 1)}".strip()))
    return found


def _neighbour(parts: list[str], at: int) -> str:
    if not 0 <= at < len(parts) or len(parts[at]) > 24:
        return ""
    return parts[at]


# Words come again and again, within a text and from one to the next.
@functools.lru_cache(maxsize=16_384)
def _refs_of(word: str, bulk: bool) -> tuple[str, ...]:
    return tuple(_judged(word, bulk))


def _judged(word: str, bulk: bool) -> Iterator[str]:
    word = word.strip(_PUNCTUATION).rstrip("." + _PUNCTUATION)
    if "://" in word:
        address = word.partition("=")[2] if _is_setting(word) else word
        # What follows the host may be a port.
        yield _WITHIN.sub("", address) if address.count("/") > 2 else address
    elif _WINDOWS.match(word):
        word = _WITHIN.sub("", word)
        yield word if word.startswith("\\\\") else word.replace("\\\\", "\\")
    elif "=" in word or "\\n" in word or "\\t" in word or ".." in word.lstrip("."):
        for piece in re.split(r"=|\\[nt]|(?<=[A-Za-z0-9])\.\.+", word):
            if 3 < len(piece) < len(word):
                yield from _judged(piece, bulk)
    else:
        if not _ADDRESS.fullmatch(word):
            word = _WITHIN.sub("", word)
        if word[:2] in ("a/", "b/") and "/" in word[2:]:
            word = word[2:]
        if len(word) > 3 and (_is_path(word, bulk) or _is_id(word, bulk)):
            yield word


def _is_setting(word: str) -> bool:
    """Tell `URL=https://host` from `https://host?a=b`."""
    return "=" in word.partition("://")[0]


def _is_path(word: str, bulk: bool) -> bool:
    if "/" not in word:
        stem, dot, extension = word.rpartition(".")
        if dot and extension.lower() in _EXTENSIONS:
            return bool(_STEM.fullmatch(stem))
        return bool(_HIDDEN.fullmatch(word))
    if not _COMPONENTS.fullmatch(word) or not _LETTER.search(word):
        return False
    if word.startswith(_ROOTS):
        return True
    if _DATE.fullmatch(word) or word.endswith("/s"):
        return False
    if (
        word.strip("/").count("/") > 1
        or _DIGIT.search(word)
        or not {".", "_", "-"}.isdisjoint(word)
    ):
        return True
    return not bulk and len(word) > _PLAIN_PATH_CHARS_MIN


def _is_id(word: str, bulk: bool) -> bool:
    if _EMAIL.fullmatch(word) or _ADDRESS.fullmatch(word):
        return True
    digits = len(_DIGIT.findall(word))
    if not digits or _DATE.fullmatch(word):
        return False
    if _NUMBERED.fullmatch(word):
        return not bulk
    if not _LETTER.search(word):
        return False
    if _ID.fullmatch(word):
        return True
    if _NAMED.fullmatch(word):
        return _is_named_id(word, digits, bulk)
    return bool(_SOLID.fullmatch(word)) and digits >= 2 and not _NUMBER.fullmatch(word)


def _is_named_id(word: str, digits: int, bulk: bool) -> bool:
    if not bulk:
        return len(word) >= 6
    pieces = re.split(r"[-_.:#~]", word)
    coded = any(len(piece) >= 4 and _DIGIT.search(piece) for piece in pieces[1:])
    return len(word) >= 8 and digits >= 2 and coded
