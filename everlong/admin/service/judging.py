"""What the answers of workers say about them. Pure functions."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

from everlong.admin.service.findings import Finding, Problem, finding
from everlong.admin.service.probing import Answer, Clock
from everlong.codecs.composition import INSPECTION_REMEDY
from everlong.models import Checked
from everlong.versions import SDK, SDK_TESTED, Versions

SKEW_SECONDS_MAX: Final = 1.0
"""Clocks that differ by more are told of: spans and deadlines are off by as much."""
_SET_CLOCK: Final = "Have NTP set the clock of that machine."
_AGENTS_SHOWN: Final = 5


@dataclasses.dataclass(frozen=True)
class Asker:
    """Who asked: what workers have to agree with."""

    versions: Versions
    store: str
    key_ids: tuple[str, ...]
    payload_digest: str
    has_attributes: bool | None
    """Whether the server has our search attributes now; None if that is not known."""


@dataclasses.dataclass(frozen=True)
class Read:
    """A worker's answer, and what the asker could read of the bytes that came with it."""

    answer: Answer
    digest: str = ""
    error: str = ""


def judge_versions(here: Versions) -> Finding:
    """Return what is to be said of the versions that are installed here."""
    text = f"everlong {here.everlong}, {SDK} {here.sdk} (tested with {SDK_TESTED}), Python {here.python}"
    if not here.sdk_fits:
        return Finding(
            "versions",
            "failed",
            f"{text}: this everlong does not work with this {SDK}",
            f"Run: pip install '{SDK}{here.sdk_wanted}'",
        )
    if not here.sdk_tested:
        return Finding(
            "versions",
            "warning",
            f"{text}: this everlong was not tested with this {SDK}",
            "Look into the log for features that are switched off. To be sure, run: pip install "
            f"'{SDK}{SDK_TESTED}'",
        )
    return Finding("versions", "ok", text)


def judge_clock(clock: Clock) -> Finding:
    """Return what is to be said of this machine's clock."""
    text = (
        f"this machine's is {skew_text(clock.ahead_seconds)} the server's, give or take "
        f"{clock.error_seconds:.3f} s"
    )
    if abs(clock.ahead_seconds) - clock.error_seconds <= SKEW_SECONDS_MAX:
        return Finding("clock", "ok", text)
    return Finding(
        "clock",
        "warning",
        f"{text}: deadlines and resume spans are off by as much",
        "Have NTP set the clocks of both.",
    )


def judge_workers(asker: Asker, listed: Sequence[str], reads: Iterable[Read]) -> list[Finding]:
    """Return a finding for each worker that answered, and one about all of them."""
    by_worker: dict[str, list[Read]] = {}
    for read in reads:
        by_worker.setdefault(read.answer.worker, []).append(read)
    nobody = by_worker.pop("", [])
    told = [judge_worker(asker, worker, by_worker[worker]) for worker in sorted(by_worker)]
    silent = [worker for worker in listed if worker not in by_worker]
    everyone = len(set(listed) | set(by_worker))
    text = f"{len(by_worker)} of {everyone} answered"
    problems = []
    if silent or (nobody and not by_worker):
        names = ", ".join(silent) or "the task queue"
        problems.append(
            Problem(
                "warning",
                f"no answer from {names}",
                "A worker that has just stopped is listed for a minute. If it runs, look into its log; "
                "it may be busy.",
            )
        )
    return [finding("workers", text, problems), *told]


def judge_worker(asker: Asker, worker: str, reads: Sequence[Read]) -> Finding:
    """Return what is to be said of one worker. The newest answer counts; a failure always does."""
    check = f"worker {worker}"
    answers = [read for read in reads if read.answer.checked is not None]
    problems = [_failure(error) for error in dict.fromkeys(read.answer.error for read in reads)]
    problems = [each for each in problems if each.text]
    if not answers:
        return finding(check, "it cannot be asked", problems)
    newest = answers[-1]
    checked = newest.answer.checked
    assert checked is not None  # noqa: S101 - it was looked for above
    apart = _store(asker, checked) or _keys(asker, newest, checked)
    problems += apart
    text = _described(checked) + ("" if apart else "; each side reads what the other writes")
    problems += _versions(asker, checked)
    if checked.codec_warning:
        problems.append(Problem("warning", checked.codec_warning, INSPECTION_REMEDY))
    if asker.has_attributes and not checked.attributes:
        problems.append(
            Problem(
                "warning",
                "it writes no search attributes yet: they were not there when it last asked",
                "It asks again by itself, within a minute or, after failed calls, within five. Its log "
                "says why.",
            )
        )
    skew = min((_skew_seconds(read.answer) for read in answers), key=abs)
    if abs(skew) > SKEW_SECONDS_MAX:
        problems.append(
            Problem("warning", f"its clock is {skew_text(skew)} the server's", _SET_CLOCK)
        )
    return finding(check, text, problems)


def skew_text(ahead_seconds: float) -> str:
    """Return a difference of clocks in words: `0.800 s ahead of`."""
    return f"{abs(ahead_seconds):.3f} s {'ahead of' if ahead_seconds >= 0 else 'behind'}"


def keys_text(key_ids: Sequence[str]) -> str:
    """Return which keys there are: `no keys`, `keys b (writes), a`."""
    return f"keys {', '.join([f'{key_ids[0]} (writes)', *key_ids[1:]])}" if key_ids else "no keys"


def _described(checked: Checked) -> str:
    names = ", ".join(checked.agents[:_AGENTS_SHOWN])
    more = len(checked.agents) - _AGENTS_SHOWN
    return (
        f"agents {names}{f' and {more} more' if more > 0 else ''}; everlong {checked.everlong}, "
        f"temporalio {checked.sdk}, Python {checked.python}; {keys_text(checked.key_ids)}"
    )


def _failure(error: str) -> Problem:
    if "is not registered" in error:
        return Problem(
            "failed",
            f"it does not know what to answer ({error})",
            "Start it with this version of Everlong, and with agents in its EverlongPlugin.",
        )
    return Problem("failed", error, "Its log tells more.")


def _store(asker: Asker, checked: Checked) -> list[Problem]:
    """Return what is wrong with the worker's store. Keys are not looked at then."""
    if not checked.probe.error:
        return []
    if checked.store != asker.store:
        return [
            Problem(
                "failed",
                f"it uses another store, {checked.store}; here it is {asker.store}",
                "Set EVERLONG_STORE to the same URL on both sides.",
            )
        ]
    why = _short(checked.probe.error)
    return [
        Problem(
            "failed",
            f"it cannot read from {checked.store} what was just written here ({why})",
            "Check that it may read there, and that both mean the same place: a directory of one "
            "machine is not that of another, and memory: is each process's own.",
        )
    ]


def _keys(asker: Asker, read: Read, checked: Checked) -> list[Problem]:
    """Return what one side cannot read of what the other wrote."""
    problems = []
    both = (
        f"Give both sides the same EVERLONG_KEYS. It has {keys_text(checked.key_ids)}; here there are "
        f"{keys_text(asker.key_ids)}."
    )
    if checked.payload.digest != asker.payload_digest:
        said = _short(checked.payload.error)
        why = f"it says: {said}" if said else "it reads other bytes"
        problems.append(Problem("failed", f"it cannot read what is written here ({why})", both))
    if checked.answer.error:
        problems.append(
            Problem(
                "failed",
                f"it cannot write to the store ({_short(checked.answer.error)})",
                "Check what its credentials allow.",
            )
        )
    elif read.digest != checked.answer.digest:
        why = _short(read.error) or "other bytes arrive"
        problems.append(Problem("failed", f"what it writes cannot be read here ({why})", both))
    return problems


def _short(error: str) -> str:
    """Return what happened, without the remedy: from here there is a better one."""
    return error.partition(". ")[0].rstrip(".")


def _versions(asker: Asker, checked: Checked) -> list[Problem]:
    problems = []
    if checked.everlong != asker.versions.everlong:
        problems.append(
            Problem(
                "warning",
                f"here it is everlong {asker.versions.everlong}",
                "Bring both to one version: workers first, if the newer one writes a new format.",
            )
        )
    if not checked.sdk_tested:
        problems.append(
            Problem(
                "warning",
                f"its everlong was not tested with temporalio {checked.sdk}",
                f"Its log says what is switched off. Here, temporalio{SDK_TESTED} was tested.",
            )
        )
    return problems


def _skew_seconds(answer: Answer) -> float:
    """Return by how much a worker's clock is wrong at least: it was read between two known times."""
    checked = answer.checked
    if checked is None:
        return 0.0
    if checked.time_ms < answer.started_ms:
        return (checked.time_ms - answer.started_ms) / 1000
    return max(0, checked.time_ms - answer.ended_ms) / 1000
