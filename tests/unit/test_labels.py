"""Labels of threads: their form and their bounds."""

import pytest

from everlong.models.labels import LABELS_MAX, change_labels, check_label, check_labels


def test_a_label_is_a_word_or_a_key_with_a_value() -> None:
    for label in ("urgent", "team=payments", "ticket=OPS-7", "größe=L", "repo=acme/web@main", "7"):
        assert check_label(label) == label
    for text in ("", "=x", "a=", "a b", "a,b", "a=b=c", "-a", "_a", "a'b", "a\0", "x" * 65):
        with pytest.raises(ValueError, match=r"no label|longer than 64"):
            check_label(text)


def test_a_label_replaces_the_one_with_its_key_and_is_removed_by_label_or_key() -> None:
    labels = check_labels(["urgent", "team=payments"])
    assert labels == ("team=payments", "urgent")
    assert change_labels(labels, ["team=search"], []) == ("team=search", "urgent")
    assert change_labels(labels, [], ["team"]) == ("urgent",)
    assert change_labels(labels, ["eu"], ["urgent", "unknown"]) == ("eu", "team=payments")
    assert change_labels(labels, [], ["team=search"]) == labels


def test_a_thread_has_a_bounded_number_of_labels() -> None:
    full = check_labels([f"l{number}" for number in range(LABELS_MAX)])
    with pytest.raises(ValueError, match="at most 10"):
        change_labels(full, ["more"], [])
    assert len(change_labels(full, ["more"], ["l1"])) == LABELS_MAX
