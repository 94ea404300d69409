"""Reports of sweeps, and the options and output of the command."""

import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from typer.testing import CliRunner

from everlong.cli import app
from everlong.cli import sweep as cli_sweep
from everlong.codecs import EverlongCodec
from everlong.errors import ConfigError, SweepIncomplete
from everlong.models import SweepOptions, SweepReport, Tally
from everlong.storage import quarantine
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore
from everlong.sweep import Records, Sweep
from everlong.sweep.history_reader import Run
from tests.support.fake_namespace import AT_ONCE, FakeNamespace, FakeRun
from tests.support.sample_payloads import noise, payload

LONG = dataclasses.replace(AT_ONCE, quarantine_seconds=3600)


async def build_namespace(world: FakeNamespace | None = None) -> tuple[FakeNamespace, FakeRun]:
    world = world or FakeNamespace(MemoryBlobStore())
    run = world.start("w0")
    for _ in range(4):
        run.payloads.append(await world.append(run, 400))
    return world, run


async def test_the_report_counts_objects_quarantined_by_this_sweep() -> None:
    world, _ = await build_namespace()
    await world.large("w0")
    await world.sweep(LONG)
    await world.large("w0")
    report = await world.sweep(LONG)
    assert report.quarantined.objects == 1
    assert report.in_quarantine.objects == len(await world.keys("quarantine/")) == 2
    parts = (report.reachable, report.archives, report.young, report.foreign, report.quarantined)
    assert report.stored.objects == sum(each.objects for each in parts)


async def test_a_dry_run_counts_restorable_objects_once() -> None:
    world, run = await build_namespace()
    named = await world.large("w0")
    await world.large("w0")
    await world.sweep(LONG)
    run.payloads.append(named)
    before = await world.keys("")
    dry = await world.sweep(dry_run=True)  # It marks twice, since there is something to delete.
    assert await world.keys("") == before
    real = await world.sweep()
    assert dry.restored == real.restored == Tally(objects=1, bytes=real.restored.bytes)
    assert dry.purged == real.purged
    assert dry.purged.objects == 1


class LateNamespace(FakeNamespace):
    """Something new turns up between the first mark and the exact one."""

    listings = 0
    late: FakeRun | None = None

    async def list_runs(self) -> AsyncIterator[list[Run]]:
        self.listings += 1
        if self.listings == 2 and self.late is not None:
            self.all[self.late.run.run_id] = self.late
        async for page in super().list_runs():
            yield page


async def build_late_namespace() -> LateNamespace:
    """A namespace with a copy whose time is over, so that there is an exact mark."""
    world = LateNamespace(MemoryBlobStore())
    await build_namespace(world)
    old = await world.large("w0")
    [key] = await world._keys(old)
    copy = quarantine.build_copy_key(key, 1_000_000_000_000, "0123abcd")
    await world.store.put(copy, await world.store.get(key))
    await world.store.delete([key])
    world.late = world.start("w9")
    del world.all[world.late.run.run_id]
    return world


async def test_an_incomplete_exact_mark_deletes_nothing_and_reports_its_work() -> None:
    world = await build_late_namespace()
    assert world.late is not None
    world.late.payloads.append(payload(b"x", encoding=b"binary/odd"))
    await world.large("w0")
    report = await world.sweep()
    assert "binary/odd" in report.incomplete[0]
    assert (report.quarantined.objects, report.purged.objects) == (1, 0)


async def test_an_exact_mark_restores_its_finds_at_once() -> None:
    world = await build_late_namespace()
    assert world.late is not None
    new = payload(b'"' + noise(4000, 77).hex().encode() + b'"')
    world.late.payloads.append(await world.encode("w0", new))
    report = await world.sweep()
    assert (report.quarantined.objects, report.restored.objects) == (1, 1)
    assert await world.keys() == await world.reachable()


@pytest.mark.guarantee(93)
async def test_the_sweeping_user_is_in_the_report_and_the_log() -> None:
    world, _ = await build_namespace()
    packs = PackStore(world.store)
    options = SweepOptions(retention=AT_ONCE, by="ann", reason="the disk is full")
    report = await Sweep(
        world, EverlongCodec(packs), packs, options, allow_short_quarantine=True
    ).run()
    assert (report.by, report.reason) == ("ann", "the disk is full")
    records = Records(world.store, await world.fetch_namespace_id())
    assert await records.read_last_report() == report
    [key] = [each for each in await world.keys("sweep/") if each.endswith(f"-{report.id}-1.json")]
    begun = json.loads(await world.store.get(key))
    assert (begun["action"], begun["by"]) == ("begin", "ann")
    assert SweepOptions().by == SweepReport(id="1", started_ms=0).by == ""


class CommandRecord:
    """Records the options that the command passes to the service."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.options: list[SweepOptions] = []
        self.report = SweepReport(id="0123abcd", started_ms=0)
        self.restored: list[str] = []
        self.seconds: list[float] = []

        async def sweep(_: Any, __: Any, options: SweepOptions, **___: Any) -> SweepReport:
            self.options.append(options)
            return self.report

        async def schedule(_: Any, seconds: float, options: SweepOptions, **__: Any) -> None:
            self.options.append(options)
            self.seconds.append(seconds)

        async def unschedule(_: Any) -> bool:
            return True

        async def restore(_: Any, keys: list[str]) -> list[Any]:
            self.restored += keys
            return []

        async def connect(_: Any) -> None:
            return None

        monkeypatch.setattr(cli_sweep, "connect", connect)
        monkeypatch.setattr(cli_sweep, "open_configured_packs", lambda _: None)
        monkeypatch.setattr(cli_sweep, "sweep_namespace", sweep)
        monkeypatch.setattr(cli_sweep, "schedule_sweeps", schedule)
        monkeypatch.setattr(cli_sweep, "unschedule_sweeps", unschedule)
        monkeypatch.setattr(cli_sweep, "restore_quarantined", restore)

    def command(self, *arguments: str) -> tuple[str, BaseException | None]:
        result = CliRunner().invoke(app, ["sweep", *arguments])
        return result.stdout, result.exception

    @property
    def did_something(self) -> bool:
        return bool(self.options or self.restored)


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> CommandRecord:
    return CommandRecord(monkeypatch)


@pytest.mark.parametrize(
    "arguments",
    [
        ("v1/aa/bb.pack",),
        ("--dry-run", "v1/aa/bb.pack"),
        ("--quarantine", "list", "v1/aa/bb.pack"),
        ("--quarantine", "restore"),
        ("--quarantine", "restore", "v1/aa/bb.pack", "--dry-run"),
        ("--quarantine", "list", "--every", "6h"),
        ("--every", "6h", "--dry-run"),
        ("--every", "soon"),
    ],
)
def test_contradictory_options_are_refused(
    record: CommandRecord, arguments: tuple[str, ...]
) -> None:
    _, error = record.command(*arguments)
    assert isinstance(error, ConfigError)
    assert not record.did_something


def test_a_schedule_is_printed_as_json(record: CommandRecord) -> None:
    text, _ = record.command("--every", "6h", "--json")
    assert json.loads(text)["every_seconds"] == 6 * 3600
    text, _ = record.command("--every", "off", "--json")
    assert json.loads(text)["every_seconds"] is None
    assert record.seconds == [6 * 3600]


def test_the_command_names_the_sweeping_user(
    record: CommandRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.command("--by", "ann", "--reason", "a full disk")
    monkeypatch.setattr("getpass.getuser", lambda: "bob")
    record.command("--every", "6h")

    def find_no_user() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", find_no_user)
    _, error = record.command()  # As in a container: it sweeps all the same.
    assert error is None
    assert [each.by for each in record.options] == ["ann", "bob", ""]
    assert record.options[0].reason == "a full disk"


def test_the_command_reports_unread_histories_and_its_work(record: CommandRecord) -> None:
    record.report = dataclasses.replace(
        record.report,
        incomplete=("run x: it cannot be read",),
        quarantined=Tally(objects=2, bytes=10),
        classes={"payload": Tally(objects=2, bytes=10)},
        clock_ahead_seconds=3600.0,
    )
    text, error = record.command()
    assert isinstance(error, SweepIncomplete)
    assert "nothing was permanently deleted" in str(error)
    assert "of class payload" in text
