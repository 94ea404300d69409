"""Thread ids: the rule for new ones, the calls that enforce it, and their display."""

import ast
import shlex
import subprocess
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio import client
from temporalio.service import RPCError, RPCStatusCode

import everlong
from everlong.client import updates
from everlong.client.fork import check_free, revive
from everlong.client.updates import send
from everlong.client.wait import ask
from everlong.errors import ThreadIdRefused, ThreadNotFound
from everlong.interceptors.thread_ids import ThreadIdInterceptor
from everlong.models import AGENT_WORKFLOW
from everlong.models.thread_ids import (
    check_id,
    check_new_id,
    clean_id,
    derive_id,
    is_new_id,
    quote_id,
    show_id,
)
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore
from everlong.workflows.transitions import build_child_id

ROOT = Path(everlong.__file__).parent
GOOD = [
    "ops-7",
    "ops 7/ü",
    "日本語",
    "😀" * 250,
    "x" * 1000,
    "a%2Fb",
    "?#&",
    "it's $(id)",
    "...",
    "-",
]
BAD = [
    "",
    " ",
    "a ",
    " a",
    "a\nb",
    "a\r",
    "\t",
    "\0",
    "\x1b[31mred",
    "\x7f",
    "\x85",
    "a\u00a0b",
    "a\u00adb",
    "\u200b",
    "👩\u200d💻",
    "a\u2028b",
    "a\u2029b",
    "\u202egnp.exe",
    "\u2066a",
    "\u2800",
    "\u3000",
    "\u3164",
    "\ufe0f",
    "\ufeffa",
    "a\ufffdb",
    "\uffff",
    "\ue000",
    "\U000e0041",
    "\U0010ffff",
    "\ud800",
    "\udcff",
    ".",
    "..",
    "x" * 1001,
    "😀" * 251,
]


@pytest.mark.parametrize("text", GOOD, ids=ascii)
def test_a_printable_id_is_accepted_and_shown_unchanged(text: str) -> None:
    check_new_id(text)
    assert show_id(text) == text
    assert clean_id(text) == text
    assert shlex.split(quote_id(text)) == [text]


@pytest.mark.parametrize("text", BAD, ids=ascii)
def test_an_unprintable_id_is_refused_with_the_rule(text: str) -> None:
    with pytest.raises(ThreadIdRefused, match="An id has 1 to 1,000 bytes in UTF-8") as raised:
        check_new_id(text)
    message = str(raised.value)
    assert message.isprintable()
    assert len(message) < 500


@given(st.characters())
def test_unicode_controls_breaks_and_blanks_are_refused(character: str) -> None:
    if unicodedata.category(character) in ("Cc", "Cs", "Co", "Zl", "Zp", "Zs") and character != " ":
        assert not is_new_id(f"a{character}b")


@given(st.text(f"{''.join(GOOD[:3])}{''.join(BAD[:29])}😀", min_size=1, max_size=300))
def test_any_text_becomes_an_acceptable_id(text: str) -> None:
    for made in (derive_id(text, "-fork"), build_child_id(text, "ops", "0123456789ab")):
        assert is_new_id(made)
        assert len(made.encode()) <= 1000


@pytest.mark.parametrize("text", ["", "x" * 1001, "\ud800"], ids=ascii)
def test_ids_that_temporal_refuses_name_no_thread(text: str) -> None:
    with pytest.raises(ThreadNotFound):
        check_id(text)


@pytest.mark.parametrize("text", [each for each in BAD if each and "\0" not in each], ids=ascii)
def test_a_shown_id_can_be_pasted_into_a_shell(text: str) -> None:
    try:
        wanted = text.encode()
    except UnicodeEncodeError:
        return  # No thread has it.
    shown = show_id(text)
    assert "\n" not in shown
    printed = subprocess.run(
        ["bash", "-c", f"printf %s {quote_id(text)}"],
        capture_output=True,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
        timeout=10,
        check=True,
    )
    assert printed.stdout == wanted


# The modules that start workflows, each with the check of its ids. Add a new one here.
STARTING_MODULES = {
    "client/fork.py": "forks and revivals: `check_free`",
    "client/updates.py": "messages that may start a thread: `check_startable`",
    "activities/notify.py": "everlong.Notifier: one for each task queue, under a fixed id",
    "doctor/workers.py": "everlong.Doctor, under an id of its own",
    "client/sweeps.py": "the schedule of everlong.Sweeper, under a fixed id",
    "workflows/tool_calls.py": "sub-agents: `build_child_id`",
    "interceptors/headers.py": "adds headers to starts",
    "interceptors/send_time.py": "adds headers to starts",
    "interceptors/thread_ids.py": "Temporal's own client with the plugin: checks them all",
    "interceptors/replay.py": "passes a child's start on",
}
STARTS = {
    "start_workflow",
    "execute_workflow",
    "start_child_workflow",
    "execute_child_workflow",
    "start_update_with_start_workflow",
    "execute_update_with_start_workflow",
    "WithStartWorkflowOperation",
    "ScheduleActionStartWorkflow",
    "create_schedule",
}


def test_every_call_that_starts_a_workflow_is_known() -> None:
    found = set()
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = node.func
                name = getattr(called, "attr", "") or getattr(called, "id", "")
                if name in STARTS:
                    found.add(path.relative_to(ROOT).as_posix())
    assert found == set(STARTING_MODULES)


class Server:
    """Knows some threads, and nothing else."""

    namespace = "default"

    def __init__(self, *known: str) -> None:
        self.known = known

    def get_workflow_handle(self, thread_id: str) -> Any:
        async def describe() -> None:
            if thread_id not in self.known:
                raise RPCError("workflow not found", RPCStatusCode.NOT_FOUND, b"")

        return SimpleNamespace(describe=describe)


async def test_a_message_starts_no_thread_under_such_an_id_and_reaches_one_that_exists() -> None:
    there: Any = Server("a\nb")
    assert await updates.check_startable(there, "ops-7", "ops")
    assert not await updates.check_startable(there, "ops-7", None)
    assert not await updates.check_startable(there, "a\nb", "ops")
    assert not await updates.check_startable(there, "a\rb", None)
    with pytest.raises(ThreadIdRefused):
        await updates.check_startable(there, "a\rb", "ops")


async def test_nothing_is_stored_for_a_thread_that_is_not_started() -> None:
    store, nowhere = MemoryBlobStore(), Server()
    packs, long = PackStore(store), "long " * 10_000
    given: dict[str, Any] = {"task_queue": "q", "agent": "ops"}
    starts = [
        send(nowhere, " ", long, packs=packs, **given),  # type: ignore[arg-type]
        ask(nowhere, packs, " ", long, **given),  # type: ignore[arg-type]
        revive(nowhere, packs, "a", " ", task_queue="q"),  # type: ignore[arg-type]
        check_free(nowhere, packs, " "),  # type: ignore[arg-type]
    ]
    for starting in starts:
        with pytest.raises(ThreadIdRefused):
            await starting
    assert store._objects == {}


class PassedRequests(client.OutboundInterceptor):
    """Notes what comes through."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    async def start_workflow(self, input: client.StartWorkflowInput) -> Any:  # noqa: A002
        self.ids.append(input.id)

    async def start_update_with_start_workflow(
        self,
        input: client.StartWorkflowUpdateWithStartInput,  # noqa: A002
    ) -> Any:
        self.ids.append(input.start_workflow_input.id)

    async def create_schedule(self, input: client.CreateScheduleInput) -> Any:  # noqa: A002
        assert isinstance(input.schedule.action, client.ScheduleActionStartWorkflow)
        self.ids.append(input.schedule.action.id)


@pytest.mark.parametrize("workflow", [AGENT_WORKFLOW, "Theirs"])
async def test_temporals_own_client_starts_threads_only_under_sound_ids(
    workflow: str,
) -> None:
    passed = PassedRequests()
    through = ThreadIdInterceptor().intercept_client(passed)

    async def start(thread_id: str) -> None:
        begun: Any = SimpleNamespace(workflow=workflow, id=thread_id)
        await through.start_workflow(begun)

    async def update(thread_id: str) -> None:
        begun = SimpleNamespace(workflow=workflow, id=thread_id)
        both: Any = SimpleNamespace(start_workflow_input=begun)
        await through.start_update_with_start_workflow(both)

    async def schedule(thread_id: str) -> None:
        action = client.ScheduleActionStartWorkflow(workflow, id=thread_id, task_queue="q")
        made: Any = SimpleNamespace(
            schedule=client.Schedule(action=action, spec=client.ScheduleSpec())
        )
        await through.create_schedule(made)

    for begin in (start, update, schedule):
        await begin("ops-7")
        if workflow == AGENT_WORKFLOW:
            with pytest.raises(ThreadIdRefused):
                await begin("a\nb")
        else:
            await begin("a\nb")
    others = [] if workflow == AGENT_WORKFLOW else ["a\nb"]
    assert passed.ids == ["ops-7", *others] * 3
