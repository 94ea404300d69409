"""A user's mistake is a message with a remedy and an exit code, never a stack trace."""

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from everlong.cli import app
from everlong.cli.app import COMMANDS, execute, load_command
from everlong.cli.approvals import choose_only
from everlong.cli.control import format_policy, parse_changes
from everlong.cli.options import resolve_name
from everlong.cli.output import THREAD_COLUMNS, build_status_table, format_arguments, print_lines
from everlong.cli.threads import COLUMNS, SORT_KEYS, STATUSES
from everlong.client.fork_links import ForkLinks
from everlong.client.lookup import ThreadSize
from everlong.client.thread_list import Sort
from everlong.errors import ConfigError, DecisionRefused
from everlong.format import format_bytes, format_count, format_setting, summarise_note
from everlong.models import (
    Approval,
    ControlNote,
    Counters,
    Decision,
    Fact,
    ForkNote,
    Kind,
    MemoryChange,
    Status,
    ThreadStatus,
    build_note,
)
from everlong.policy import LimitHit, Policy
from tests.support.forked_command import run_command


def everlong(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return run_command(
        *arguments,
        cwd=cwd,
        env={
            "TEMPORAL_CONFIG_FILE": os.devnull,
            "EVERLONG_STORE": (cwd / "blobs").as_uri(),
            **env,
        },
    )


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def check_failure(result: subprocess.CompletedProcess[str], exit_code: int, *texts: str) -> None:
    assert result.returncode == exit_code, result.stderr
    assert result.stderr.startswith("error: "), result.stderr
    assert "Traceback" not in result.stderr + result.stdout
    for text in texts:
        assert text in result.stderr


def test_an_unknown_store_scheme_is_refused(tmp_path: Path) -> None:
    result = everlong("worker", "everlong.demo:agent", cwd=tmp_path, EVERLONG_STORE="ftp://x")
    check_failure(result, 2, "unknown store scheme 'ftp'", "file:///")


def test_a_negative_threshold_is_refused(tmp_path: Path) -> None:
    result = everlong("worker", "everlong.demo:agent", cwd=tmp_path, EVERLONG_INLINE_BYTES_MAX="-5")
    check_failure(result, 2, "EVERLONG_INLINE_BYTES_MAX is -5")


@pytest.mark.parametrize("command", ["dev", "demo"])
def test_an_unwritable_data_directory_is_refused(tmp_path: Path, command: str) -> None:
    (tmp_path / "file").touch()
    result = everlong(command, "--data-dir", "file/data", cwd=tmp_path)
    check_failure(result, 3, "cannot be used", "--data-dir")


@pytest.mark.parametrize("option", ["--port", "--ui-port"])
def test_a_port_in_use_is_reported(tmp_path: Path, busy_port: int, option: str) -> None:
    result = everlong("dev", option, str(busy_port), cwd=tmp_path)
    check_failure(result, 3, f"port {busy_port} is in use", "choose another")


def test_a_missing_temporal_program_is_reported(tmp_path: Path) -> None:
    code = (
        "import sys; from everlong.__main__ import main; sys.executable = '/nowhere/python'; "
        "sys.argv = ['everlong', 'dev']; main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    check_failure(result, 3, "no `temporal` program", "pip install 'everlong[embedded]'")


def test_a_server_that_dies_at_start_is_reported(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    (data_dir / "temporal.db").write_bytes(b"this is not a database" * 100)
    result = everlong("dev", "--data-dir", str(data_dir), cwd=tmp_path)
    check_failure(result, 3, "the Temporal server ended by itself", "temporal.log")


@pytest.mark.guarantee(84)
def test_a_demo_empties_no_directory_but_its_own(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/thesis.txt").write_text("years of work")
    result = everlong("demo", "--data-dir", "precious", cwd=tmp_path)
    check_failure(result, 3, "no demo has written")
    assert (tmp_path / "precious/thesis.txt").read_text() == "years of work"


def test_a_missing_server_is_reported(tmp_path: Path, busy_port: int) -> None:
    address = f"127.0.0.1:{busy_port + 1 if busy_port < 65535 else busy_port - 1}"
    for arguments in (["worker", "everlong.demo:agent"], ["send", "t", "hi"], ["show", "t"]):
        result = everlong(*arguments, cwd=tmp_path, TEMPORAL_ADDRESS=address)
        check_failure(result, 4, f"no Temporal server answers at {address}", "everlong dev")


@pytest.mark.guarantee(90)
def test_a_missing_store_setting_is_reported(tmp_path: Path, free_port: int) -> None:
    serve = ["serve", "--port", f"{free_port}"]
    for arguments in (["worker", "everlong.demo:agent"], ["show", "t"], serve):
        check_failure(
            everlong(*arguments, cwd=tmp_path, EVERLONG_STORE=""), 2, "no blob store is set"
        )
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_address_is_refused(tmp_path: Path) -> None:
    result = everlong("show", "t", cwd=tmp_path, TEMPORAL_ADDRESS="not a host")
    check_failure(result, 4, "at not a host")


def test_an_invalid_store_url_is_refused(tmp_path: Path) -> None:
    result = everlong("worker", "everlong.demo:agent", cwd=tmp_path, EVERLONG_STORE="file://[bad")
    check_failure(result, 2, "store URL")


def test_one_port_for_two_services_is_refused(tmp_path: Path) -> None:
    result = everlong("dev", "--port", "17233", "--ui-port", "17233", cwd=tmp_path)
    check_failure(result, 2, "two different ports")


def test_an_unwritable_log_is_reported(tmp_path: Path) -> None:
    (tmp_path / "data/temporal.log").mkdir(parents=True)
    result = everlong("dev", "--data-dir", "data", cwd=tmp_path)
    check_failure(result, 3, "temporal.log cannot be written")


def test_serve_reports_a_port_in_use(tmp_path: Path, busy_port: int) -> None:
    check_failure(everlong("serve", "--port", str(busy_port), cwd=tmp_path), 3, "is in use")


def test_a_missing_agent_is_reported(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def oops(:\n")
    check_failure(everlong("worker", "nowhere:x", cwd=tmp_path), 2, "importing 'nowhere' failed")
    check_failure(everlong("worker", "broken:x", cwd=tmp_path), 2, "SyntaxError")


def test_serve_requires_a_token_beyond_loopback(tmp_path: Path) -> None:
    result = everlong("serve", "--host", "0.0.0.0", cwd=tmp_path)
    check_failure(result, 2, "EVERLONG_TOKEN", "--allow-anonymous")


def test_help_lists_every_command(tmp_path: Path) -> None:
    result = everlong("--help", cwd=tmp_path)
    assert result.returncode == 0
    for command in COMMANDS:
        assert f" {command} " in result.stdout


def list_examples() -> list[tuple[str, str]]:
    return [(name, line) for name in COMMANDS for line in load_command(name).examples]


def test_each_command_has_an_example_that_its_parser_takes() -> None:
    examples = list_examples()
    assert {name for name, _ in examples} == set(COMMANDS)
    parsed = []
    for _, line in examples:
        for arguments in split_commands(line):
            if arguments[0] == "everlong":
                command = load_command(arguments[1])
                command.make_context(arguments[1], arguments[2:])
                parsed.append(arguments[1])
    assert set(parsed) == set(COMMANDS)


def split_commands(line: str) -> Iterator[list[str]]:
    """Split a line of shell into its commands, without redirections."""
    found: list[str] = []
    for word in [*shlex.split(line), "&&"]:
        if word in ("&&", "|", "<", ">"):
            yield found
            found = []
        else:
            found.append(word)


def test_options_of_one_name_mean_the_same_in_every_command() -> None:
    meanings: dict[str, set[tuple[str, bool]]] = {}
    for name in COMMANDS:
        for param in load_command(name).params:
            if param.param_type_name == "option":
                assert not param.secondary_opts, f"{name} has {param.secondary_opts}"
                assert param.help, f"{name} {param.opts} has no help"
                assert param.is_flag or param.metavar, f"{name} {param.opts} has no metavar"
                for each in param.opts:
                    meanings.setdefault(each, set()).add((param.metavar or "", param.is_flag))
    assert {each: found for each, found in meanings.items() if len(found) > 1} == {}


@pytest.mark.parametrize("columns", ["60", "100"])
def test_help_fits_the_terminal(columns: str) -> None:
    for name in COMMANDS:
        result = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": columns})
        text, _, examples = result.output.partition("EXAMPLES")
        assert result.exit_code == 0
        assert examples
        assert [line for line in text.splitlines() if len(line) > int(columns)] == []


USAGE_ERRORS = [
    (
        ["thraeds"],
        "there is no command 'thraeds'. Did you mean threads? List the commands: everlong --help",
    ),
    (
        ["send", "--agnet", "x"],
        "everlong send: there is no option '--agnet'. Did you mean --agent? See: everlong send --help",
    ),
    (["send", "ops-7"], "everlong send: TEXT is missing. See: everlong send --help"),
    (
        ["send", "ops-7", "two", "words"],
        "everlong send: there are more arguments than it takes: 'words'. Put a text with blanks in "
        "quotes. See: everlong send --help",
    ),
    (
        ["threads", "--limit"],
        "everlong threads: --limit needs a value. See: everlong threads --help",
    ),
    (["threads", "--limit", "900"], "--limit is '900'. Give a whole number, 1 to 200."),
    (["show", "ops-7", "--at", "last"], "--at is 'last'. Give a whole number, 1 or more."),
    (
        ["threads", "--sort", "step"],
        "--sort cannot be 'step'. Did you mean steps? Use started, id, agent, status, stored, growth, "
        "steps, resume, lag, pending, tokens, cost, active or attention.",
    ),
    (
        ["archive", "ops-7", "--then", "clos"],
        "--then cannot be 'clos'. Did you mean close? Use keep, close or free.",
    ),
    (
        ["send", "a", "b", "--timeout", "5 minuets"],
        "--timeout: '5 minuets' is not a duration. Write 90s, 5m, 6h or 7d.",
    ),
]


@pytest.mark.parametrize(
    ("arguments", "text"), USAGE_ERRORS, ids=[each[0] for each, _ in USAGE_ERRORS]
)
def test_a_usage_error_says_what_to_type(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(arguments) == 2
    assert capsys.readouterr().err == f"error: {text}\n"


def test_the_sort_keys_of_the_help_are_those_of_the_list() -> None:
    assert {*SORT_KEYS, *(f"-{each}" for each in SORT_KEYS)} == set(get_args(Sort))
    assert {*STATUSES} == {*Status}
    assert COLUMNS == THREAD_COLUMNS


def test_an_approval_without_an_id_is_the_only_one_that_waits() -> None:
    one = Approval(id="2-1-ab", tool="restart", arguments='{"host": "a"}', asked_ms=1)
    two = Approval(id="2-2-cd", tool="restart", arguments="x\n; rm -rf ~", asked_ms=1)
    assert choose_only("ops-7", [one], "approve") == "2-1-ab"
    with pytest.raises(DecisionRefused, match=r"^no tool call of thread ops-7 waits"):
        choose_only("ops-7", [], "approve")
    with pytest.raises(DecisionRefused) as refused:
        choose_only("ops 7", [one, two], "deny")
    assert str(refused.value).splitlines() == [
        "2 tool calls of thread ops 7 wait for approval. Name one:",
        '  restart {"host": "a"}',
        "    everlong deny 'ops 7' 2-1-ab",
        "  restart x ; rm -rf ~",
        "    everlong deny 'ops 7' 2-2-cd",
    ]


def test_changes_of_a_policy_take_units_and_words() -> None:
    changes = ["steps_max=1,500", "cost_usd_max=None", "on_limit=stop", "summary=true"]
    assert parse_changes(changes) == {
        "steps_max": 1500,
        "cost_usd_max": None,
        "on_limit": "stop",
        "summary": True,
    }
    assert parse_changes(['actions={"steps_max": "stop"}']) == {"actions": {"steps_max": "stop"}}
    sizes = ["context_bytes_max=512KiB", "idle_seconds=5m", "cost_usd_max=$2.5", "run_blobs_max=9"]
    assert parse_changes(sizes) == {
        "context_bytes_max": 524288,
        "idle_seconds": 300,
        "cost_usd_max": 2.5,
        "run_blobs_max": 9,
    }


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("steps_max", "'steps_max' is not NAME=VALUE. Write it as in steps_max=500."),
        ("steps_max=", "'steps_max=' is not NAME=VALUE. Write it as in steps_max=500."),
        ("step_max=5", "there is no limit 'step_max'. Did you mean steps_max? List all with: "),
        ("idle=5m", "there is no limit 'idle'. Did you mean idle_seconds? List all with: "),
        ("steps_max=many", "steps_max: 'many' is not a number. Write it as in steps_max=500."),
        ("idle_seconds=5x", "idle_seconds: '5x' is not a duration. Write 90s, 5m, 6h or 7d."),
        (
            "context_bytes_max=big",
            "context_bytes_max: 'big' is not a size. Write 512KiB, 4MiB or 1GiB.",
        ),
    ],
)
def test_an_invalid_policy_change_is_refused(change: str, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_changes([change])
    assert str(refused.value).startswith(text)


def test_a_policy_is_shown_as_people_write_it() -> None:
    count = len(Policy().fields())
    policy = Policy(context_bytes_max=512 * 1024, idle_seconds=90, cost_usd_max=None)
    assert format_policy("ops-7", policy, whole=False) == [
        "* idle_seconds       90 s     default 5 min",
        "* cost_usd_max       none     default $1,000",
        "* context_bytes_max  512 KiB  default 1 MiB",
        f"3 of {count} limits of ops-7 differ from the defaults; --all shows the others too",
    ]
    lines = format_policy("ops-7", policy, whole=True)
    for line in ("  tool_result_ttl_seconds  7 days", "  thread_bytes_max         4 GiB"):
        assert line in lines
    assert format_policy("ops-7", Policy(), whole=False) == [
        f"all {count} limits of ops-7 have their defaults; --all shows them"
    ]


def test_each_limit_is_read_as_it_is_shown() -> None:
    for name, value in Policy().fields().items():
        assert parse_changes([f"{name}={format_setting(name, value)}"]) == {name: value}


def test_a_user_without_a_login_name_must_give_by(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", unknown)
    assert resolve_name("ann") == "ann"
    with pytest.raises(ConfigError, match="--by NAME"):
        resolve_name("")


def test_foreign_text_does_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines(["[red]fact[/red] \x1b[2Jgone"])
    assert capsys.readouterr().out == "[red]fact[/red] \N{REPLACEMENT CHARACTER}[2Jgone\n"


def test_quotes_in_errors_do_not_control_the_terminal(tmp_path: Path) -> None:
    code = (
        "import sys; import everlong.cli; from everlong.errors import ConfigError\n"
        "def fail(*a, **b): raise ConfigError('bad \\x1b[2J name')\n"
        "module = sys.modules['everlong.cli.app']; module.app = fail; module.run()"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    check_failure(result, 2, "bad \N{REPLACEMENT CHARACTER}[2J name")
    assert "\x1b" not in result.stderr


def test_arguments_are_printed_within_a_bound_on_marked_lines() -> None:
    text = format_arguments('{"x": "\x1b[2J",\n9-1-abcd  restart {}}')
    assert text == '    {"x": "\N{REPLACEMENT CHARACTER}[2J",\n    9-1-abcd  restart {}}'
    long_text = format_arguments("é" * 3000)
    assert long_text == "    " + "é" * 2048 + "… and 1904 more bytes; --json prints them"


def test_a_partial_size_says_so() -> None:
    status = ThreadStatus(
        agent="ops",
        status=Status.WAITING,
        counters=Counters(),
        head=None,
        waiting_messages=0,
        last_failure="",
    )
    for is_partial, text in ((False, "2.0 KiB in 7 events, 3 runs"), (True, "7+ events, 3+ runs")):
        view = build_status_table(
            "t", status, ThreadSize(3, 7, 2048, 1, 9, is_partial), [], ForkLinks()
        )
        [history] = [each for each in view.columns[1].cells if "events" in str(each)]
        assert text in str(history)
        assert str(history).startswith("at least") is is_partial


NOTES: list[tuple[Kind, object, str]] = [
    (
        Kind.ASKED,
        Approval(id="2-1", tool="restart", arguments="{}", asked_ms=1),
        "2-1 restart {}",
    ),
    (
        Kind.DECIDED,
        Decision(id="2-1", tool="restart", asked_ms=1, approve=False, by="ann", reason="no"),
        "2-1 denied by ann: no",
    ),
    (
        Kind.DECIDED,
        Decision(
            id="2-1", tool="restart", asked_ms=1, approve=False, by="deadline", escalated=True
        ),
        "2-1 escalated by deadline",
    ),
    (
        Kind.MEMORY,
        MemoryChange(remembered=Fact(key="k", text="t", time_ms=1), evicted=("a", "b")),
        "remembered k: t; evicted a, b",
    ),
    (Kind.MEMORY, MemoryChange(forgotten="k"), "forgot k"),
    (
        Kind.LIMIT,
        LimitHit(limit="steps_max", value=5, bound=5, action="pause"),
        "steps_max: 5 of 5, pause",
    ),
    (
        Kind.CONTROL,
        ControlNote(action="configure", by="ann", changes={"steps_max": 5, "on_limit": "stop"}),
        "configure on_limit=stop steps_max=5 by ann",
    ),
    (Kind.FORK, ForkNote(thread_id="t", seq=4), "of thread t at 4"),
]


@pytest.mark.parametrize(("kind", "data", "text"), NOTES, ids=[text for *_, text in NOTES])
def test_notes_are_described_in_words(kind: Kind, data: object, text: str) -> None:
    assert summarise_note(build_note(1, kind, data, 1)).strip() == text


def test_a_command_without_its_packages_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['typer'] = None; from everlong.__main__ import main; "
        "sys.argv = ['everlong']; main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    check_failure(result, 1, "pip install 'everlong[admin]'")


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "run", "1 run"),
        (0, "run", "0 runs"),
        (1, "entry", "1 entry"),
        (2000, "entry", "2,000 entries"),
    ],
)
def test_a_count_agrees_with_its_noun(count: int, noun: str, text: str) -> None:
    assert format_count(count, noun) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_258_291, "1.2 MiB"), (5 << 40, "5.0 TiB")],
)
def test_sizes_are_printed_with_units(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_the_help_lists_each_command_with_its_own_summary() -> None:
    for name, (_, summary) in COMMANDS.items():
        assert load_command(name).summary == summary, name
        assert len(summary) <= 80


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_version_and_help_import_no_command_and_no_client(option: str) -> None:
    code = (
        "import contextlib, io, sys; from everlong.cli.app import app\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        f"    app([{option!r}])\n"
        "print(*sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    modules = result.stdout.split()
    assert not {"temporalio", "pydantic", "rich"}.intersection(modules)
    ours = [each for each in modules if each.startswith("everlong")]
    assert sorted(ours) == [
        "everlong",
        "everlong.cli",
        "everlong.cli.app",
        "everlong.cli.help",
        "everlong.cli.usage",
        "everlong.errors",
    ]


def test_a_list_of_threads_imports_no_worker_and_no_server(tmp_path: Path) -> None:
    """Modules and not seconds, which depend on load: 800 of them take half a second of CPU."""
    code = (
        "import os, sys; from everlong.cli.app import execute; execute(['threads'])\n"
        "print(*sys.modules)"
    )
    env = {
        **os.environ,
        "TEMPORAL_ADDRESS": "127.0.0.1:1",
        "TEMPORAL_CONFIG_FILE": os.devnull,
        "EVERLONG_STORE": tmp_path.as_uri(),
    }
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stderr.startswith("error: no Temporal server answers"), "it has tried to connect"
    modules = set(result.stdout.split())
    heavy = {"fastapi", "uvicorn", "duckdb", "pyarrow", "obstore", "boto3", "pydantic_ai"}
    ours = {"everlong.workflows", "everlong.activities", "everlong.worker", "everlong.plugin"}
    assert modules.isdisjoint(heavy | ours)
    assert len(modules) < 850


@pytest.mark.parametrize("command", ["query", "sweep", "threads"])
def test_only_the_root_installs_completion(command: str) -> None:
    assert "install-completion" not in CliRunner().invoke(app, [command, "--help"]).output
