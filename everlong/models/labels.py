"""Labels of a thread: a few words, or `key=value`, to find threads by.

They are the search attribute `EverlongLabels` and nothing else: the server hands them on to the next
run, lists them and filters by them. Like all search attributes they are not sealed.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

LABELS_MAX: Final = 10
"""Labels of one thread. With the longest labels they are 640 characters in each row of a list."""
LABEL_CHARS_MAX: Final = 64
_LABEL: Final = re.compile(r"[^\W_][\w.:/@+-]*(?:=[\w.:/@+-]+)?")


def check_label(label: str) -> str:
    """Return a valid label; raise ValueError for any other text."""
    if len(label) > LABEL_CHARS_MAX:
        raise ValueError(f"the label {label[:20]!r}… is longer than {LABEL_CHARS_MAX} characters")
    if not _LABEL.fullmatch(label):
        raise ValueError(
            f"{label!r} is no label. Write a word, as in urgent, or key=value, as in team=payments: "
            "letters, digits and . : / @ + - _"
        )
    return label


Label = Annotated[str, AfterValidator(check_label)]


@dataclass(frozen=True, kw_only=True)
class ChangeLabels:
    """Argument of the `label` update: labels to remove, then labels to add."""

    add: Annotated[tuple[Label, ...], Field(max_length=LABELS_MAX)] = ()
    """A label with a key replaces the one with the same key."""
    remove: Annotated[
        tuple[Annotated[str, Field(max_length=LABEL_CHARS_MAX)], ...], Field(max_length=LABELS_MAX)
    ] = ()
    """Labels, or keys of labels."""
    by: Annotated[str, Field(max_length=64)] = ""
    reason: Annotated[str, Field(max_length=300)] = ""


def check_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Return valid labels, sorted and each once; raise ValueError for others, and for too many."""
    return change_labels((), labels, ())


def change_labels(
    labels: Sequence[str], add: Sequence[str], remove: Sequence[str]
) -> tuple[str, ...]:
    """Return labels after a change, sorted; raise ValueError if they are invalid or too many."""
    found = {
        _get_key(each): each
        for each in labels
        if each not in remove and _get_key(each) not in remove
    }
    for each in add:
        found[_get_key(check_label(each))] = each
    if len(found) > LABELS_MAX:
        raise ValueError(f"a thread has at most {LABELS_MAX} labels; these are {len(found)}")
    return tuple(sorted(found.values()))


def _get_key(label: str) -> str:
    """Return the key of a label: two labels of one thread never have the same."""
    return label.partition("=")[0]
