"""Doctor: findings about faulty stores, clocks and workers."""

import asyncio
import dataclasses
import os
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from typer.testing import CliRunner

from everlong import EverlongPlugin, limits
from everlong.cli import app
from everlong.client.search_attributes import _make_refusal
from everlong.codecs import EverlongCodec
from everlong.doctor.checks import check_store, judge_clock, judge_versions
from everlong.doctor.workers import (
    Answer,
    Asker,
    Clock,
    Read,
    judge_worker,
    judge_workers,
)
from everlong.errors import ServerUnreachable, SetupRefused, StoreUnavailable
from everlong.models import CHECK, CheckResult, ProbeResult
from everlong.models.search_attributes import SEARCH_ATTRIBUTES
from everlong.storage.base import BlobInfo
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import open_packs
from everlong.versions import SDK_TESTED, Versions, fits, get_versions
from tests.support.sample_payloads import KEY_1, activity, payload
from tests.unit.test_cli import everlong

HERE = Versions(everlong="1.0", sdk="1.35.0", sdk_wanted="<2,>=1.33", python="3.11.9")
ASKER = Asker(versions=HERE, store="s3://a", key_ids=(), payload_digest="ours", has_attributes=True)
WELL = CheckResult(
    time_ms=5000,
    everlong="1.0",
    sdk="1.35.0",
    sdk_tested=True,
    python="3.11.9",
    agents=("ops",),
    store="s3://a",
    inline_bytes_max=3072,
    key_ids=(),
    attributes=True,
    probe=ProbeResult(digest="probe"),
    payload=ProbeResult(digest="ours"),
    answer=ProbeResult(digest="theirs"),
    answer_payload="...",
)


def read(checked: CheckResult | None = WELL, error: str = "", worker: str = "w") -> Read:
    return Read(Answer(worker, checked, error, started_ms=4990, ended_ms=5010), "theirs")


def vary(**changes: object) -> Read:
    return read(dataclasses.replace(WELL, **changes))  # type: ignore[arg-type]


class DenyingStore(MemoryBlobStore):
    """Refuses the denied operations, or returns other bytes, or is slow."""

    def __init__(self, *denied: str) -> None:
        super().__init__()
        self.denied = denied

    def _check(self, action: str) -> None:
        if action in self.denied:
            raise StoreUnavailable(f"{action} is refused")

    async def put(self, key: str, data: bytes) -> None:
        self._check("put")
        await super().put(key, data)

    async def get(self, key: str) -> bytes:
        self._check("get")
        data = await super().get(key)
        return data[::-1] if "corrupt" in self.denied else data

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        if "slow" in self.denied:
            await asyncio.sleep(0.05)
        return (await MemoryBlobStore.get(self, key))[start : start + length]

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        self._check("list")
        async for info in super().list(prefix):
            yield info

    async def delete(self, keys: Iterable[str]) -> None:
        self._check("delete")
        await super().delete(keys)


@pytest.mark.parametrize(
    ("denied", "status", "text"),
    [
        ("nothing", "ok", "write "),
        ("put", "failed", "cannot be written to (put is refused)"),
        ("get", "failed", "cannot be read (get is refused)"),
        ("corrupt", "failed", "bytes read differ"),
        ("list", "warning", "cannot be listed"),
        ("delete", "warning", "cannot be deleted"),
    ],
)
async def test_refusals_of_a_store_are_reported(denied: str, status: str, text: str) -> None:
    store = DenyingStore(denied)
    found = await check_store(open_packs(store).store)
    assert (found.check, found.status) == ("store", status)
    assert text in found.text
    assert bool(found.fix) == (status != "ok")
    if denied != "delete":
        assert store._objects == {}


async def test_the_check_of_a_hanging_store_times_out_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("everlong.doctor.probes.SECONDS_MAX", 0.01)
    found = await check_store(store := DenyingStore("slow"))
    assert found.status == "failed"
    assert "did not answer in time" in found.text
    assert store._objects == {}


async def test_a_cancelled_check_leaves_nothing() -> None:
    store = DenyingStore("slow")
    task = asyncio.create_task(check_store(store))
    while not store._objects:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert store._objects == {}


async def test_a_slow_store_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STORE_TRY_SECONDS", 0.01)
    assert (await check_store(DenyingStore("slow"))).status == "warning"


@pytest.mark.parametrize(
    ("ahead", "error", "status"),
    [
        (0.2, 0.1, "ok"),
        (-0.2, 0.1, "ok"),
        (1.5, 0.6, "ok"),
        (1.5, 0.1, "warning"),
        (-9, 0.1, "warning"),
    ],
)
def test_a_clock_is_reported_only_if_it_is_wrong_for_sure(
    ahead: float, error: float, status: str
) -> None:
    assert judge_clock(Clock(ahead, error)).status == status


PROBLEMS = [
    (
        vary(payload=ProbeResult(error="no key. Add it.")),
        "failed",
        "(it says: no key)",
        "EVERLONG_KEYS",
    ),
    (vary(answer=ProbeResult(digest="others")), "failed", "cannot be read here", "EVERLONG_KEYS"),
    (vary(answer=ProbeResult(error="denied")), "failed", "cannot write to the store", "credentials"),
    (vary(store="s3://b", probe=ProbeResult(error="x")), "failed", "another store, s3://b", "_STORE"),
    (vary(probe=ProbeResult(error="not there")), "failed", "(not there)", "same place"),
    (vary(everlong="0.9"), "warning", "everlong is 1.0 here", "one version"),
    (vary(sdk="1.40.0", sdk_tested=False), "warning", "with temporalio 1.40.0", ">=1.33,<1.36"),
    (vary(attributes=False), "warning", "no search attributes", "checks again within a minute"),
    (vary(time_ms=3000), "warning", "1.990 s behind", "NTP"),
    (vary(time_ms=7000), "warning", "1.990 s ahead of", "NTP"),
    (read(None, "everlong.check is not registered"), "failed", "does not know", "this version"),
    (read(None, "it broke"), "failed", "it broke", "log"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "status", "text", "fix"), PROBLEMS)
def test_faults_of_a_worker_are_reported(answer: Read, status: str, text: str, fix: str) -> None:
    found = judge_worker(ASKER, "w", [answer])
    assert (found.check, found.status) == ("worker w", status)
    assert text in found.text
    assert fix in found.fix


def test_a_healthy_worker_passes_and_no_failure_of_others_is_lost() -> None:
    assert judge_worker(ASKER, "w", [read(), read()]).status == "ok"
    assert judge_worker(ASKER, "w", [read(None, "it broke"), read()]).status == "failed"


def test_a_silent_worker_is_named() -> None:
    everyone, one = judge_workers(ASKER, ["v", "w"], [read()])
    assert (everyone.status, one.status) == ("warning", "ok")
    assert everyone.text == "1 of 2 answered; no answer from v"
    [silent] = judge_workers(ASKER, ["v"], [read(None, "it did not answer", worker="")])
    assert silent.status == "warning"
    unlisted = judge_workers(ASKER, [], [read()])
    assert [each.status for each in unlisted] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("version", "right"),
    [("1.35.0", True), ("1.35", True), ("1.35.9rc1", True), ("1.36.0", False), ("1.4", False)],
)
def test_a_version_is_compared_by_its_numbers(version: str, right: bool) -> None:
    assert fits(version, "<1.36,>=1.35") is right


def test_the_range_of_the_sdk_is_that_of_the_project() -> None:
    found = get_versions()
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    lower, upper = found.sdk_wanted.split(",")[::-1]
    assert f'"temporalio{lower},{upper}"' in project
    assert found.sdk_fits
    assert found.sdk_tested, "the tests run with it: say so in versions.py"


@pytest.mark.parametrize(
    ("sdk", "status", "fix"),
    [
        ("1.33.0", "ok", ""),
        ("1.35.9", "ok", ""),
        ("1.36.0", "warning", "pip install 'temporalio>=1.33,<1.36'"),
        ("1.32.4", "failed", "pip install 'temporalio<2,>=1.33'"),
        ("2.0.0", "failed", "pip install 'temporalio<2,>=1.33'"),
    ],
)
def test_an_untested_minor_version_is_a_warning_and_another_major_one_a_failure(
    sdk: str, status: str, fix: str
) -> None:
    found = judge_versions(dataclasses.replace(HERE, sdk=sdk))
    assert found.status == status
    assert fix in found.fix


def test_an_untested_version_warns_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("everlong.plugin.get_sdk_version", lambda: "1.99.0")
    for _ in range(3):
        EverlongPlugin(store="memory:")
    [warning] = [each for each in caplog.messages if "1.99.0" in each]
    assert SDK_TESTED in warning


def test_the_tested_versions_are_within_those_that_are_required() -> None:
    lowest = SDK_TESTED.split(",")[0]
    assert lowest in get_versions().sdk_wanted.split(",")


@pytest.mark.parametrize(
    ("address", "status", "kind", "text"),
    [
        ("a.b.tmprl.cloud:7233", RPCStatusCode.PERMISSION_DENIED, SetupRefused, "tcld"),
        ("host:7233", RPCStatusCode.UNIMPLEMENTED, SetupRefused, "EverlongAskedAt=Datetime"),
        ("host:7233", RPCStatusCode.PERMISSION_DENIED, SetupRefused, "administrator"),
        ("host:7233", RPCStatusCode.NOT_FOUND, SetupRefused, "TEMPORAL_NAMESPACE"),
        ("host:7233", RPCStatusCode.UNAVAILABLE, ServerUnreachable, "does not answer"),
        ("host:7233", RPCStatusCode.INVALID_ARGUMENT, SetupRefused, "columns"),
    ],
)  # fmt: skip
async def test_the_servers_reason_for_refusing_attributes_is_reported(
    address: str, status: RPCStatusCode, kind: type[Exception], text: str
) -> None:
    client = await Client.connect(address, lazy=True)
    error = _make_refusal(client, RPCError("no", status, b""))
    assert type(error) is kind
    assert text in str(error)
    if text == "tcld":
        assert all(f"{name}={type_}" in str(error) for name, type_ in SEARCH_ATTRIBUTES.items())


async def test_only_doctor_payloads_stay_plain() -> None:
    codec = EverlongCodec(MemoryBlobStore(), keys={"k": KEY_1})

    def of(activity_type: str) -> EverlongCodec:
        return codec.with_context(
            dataclasses.replace(activity(), activity_type=activity_type, workflow_type="t")
        )

    versions = payload(b"versions")
    assert await of(CHECK).encode([versions]) == [versions]
    assert await of(CHECK).decode([versions]) == [versions]
    assert await of("theirs").encode([versions]) != [versions]


@pytest.fixture
def silent_address() -> Iterator[str]:
    """An address with a listener that never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_the_doctor_checks_the_rest_without_a_server(tmp_path: Path) -> None:
    result = everlong("doctor", cwd=tmp_path, TEMPORAL_ADDRESS="127.0.0.1:1")
    assert result.returncode == 1, result.stderr
    assert "ok       store: " in result.stdout
    assert "failed   server: no Temporal server answers at 127.0.0.1:1" in result.stdout
    assert "skipped  workers: " in result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("command", "exit_code"), [("doctor", 1), ("setup", 1)])
def test_the_doctor_does_not_wait_for_a_silent_server(
    tmp_path: Path,
    silent_address: str,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    exit_code: int,
) -> None:
    monkeypatch.setattr("everlong.cli.doctor._CONNECT_SECONDS_MAX", 0.2)
    env = {
        "TEMPORAL_CONFIG_FILE": os.devnull,
        "TEMPORAL_ADDRESS": silent_address,
        "EVERLONG_STORE": (tmp_path / "blobs").as_uri(),
    }
    result = CliRunner().invoke(app, [command], env=env)
    assert result.exit_code == exit_code
    message = f"no Temporal server answers at {silent_address} within"
    assert message in result.output + str(result.exception)


def test_setup_reports_a_missing_server(tmp_path: Path) -> None:
    result = everlong("setup", cwd=tmp_path, TEMPORAL_ADDRESS="127.0.0.1:1", EVERLONG_STORE="")
    assert result.returncode == 4, result.stderr
    assert "no Temporal server answers at 127.0.0.1:1" in result.stderr
