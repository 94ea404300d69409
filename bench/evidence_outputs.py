"""Tool outputs of the corpus: logs, tables, diffs, JSON, pages, with planted evidence."""

import json
from collections.abc import Callable
from typing import Final

from bench.evidence_names import World
from bench.evidence_phrases import PEOPLE


def build_short_output(world: World, numbers: Callable[[str], str]) -> str:
    """Return a line or two; `numbers` records each number."""
    n = numbers(str(world.random.randint(1000, 99999)))
    f = numbers(f"{world.random.uniform(1, 900):.2f}")
    who = world.random.choice(PEOPLE)
    return world.random.choice(
        [
            f'{{"ok": true, "rows": {n}, "elapsed_ms": {f}}}',
            f"{n} rows in {f} s",
            f"wrote {world.path()} ({n} bytes)",
            f"matched {n}; see {world.path()}",
            f"created {world.new_id()}",
            f"status: active\nowner: {who}\nbalance: {f}\nref: {world.known_id()}",
            "ok",
            f"{world.path()}: no changes",
        ]
    )


def build_failed_output(world: World) -> tuple[str, str]:
    """Return the output of a failed call, and its words for the failure."""
    path, word = world.path(), world.word()
    reason = world.random.choice(
        [
            f"No such file or directory: {word}",
            "permission denied",
            f'relation "{word}" does not exist',
            "timed out after 30 s",
            f"connection refused by {word}",
            "HTTP 503 from upstream",
            f"unknown flag --{word}",
        ]
    )
    form = world.random.choice(
        [
            "error: {0}",
            "error: {0} ({1})",
            "Traceback (most recent call last):\n  File {1}\nOSError: {0}",
            "{0}",
        ]
    )
    return form.format(reason, path), reason


def build_long_output(world: World, lines: int) -> str:
    """Return an output of about `lines` lines, typical for the kind of work."""
    return world.random.choice(_DUMPS[world.domain])(world, lines)


def _build_log(world: World, lines: int) -> str:
    draw, word = world.random, world.word
    traces = [world.new_id() for _ in range(max(2, lines // 14))]
    found = []
    for number in range(lines):
        minute, second = draw.randint(0, 59), draw.randint(0, 59)
        stamp = f"2024-11-{1 + number % 27:02} {number % 24:02}:{minute:02}:{second:02}"
        level = draw.choice(["INFO", "INFO", "INFO", "DEBUG", "WARN", "ERROR"])
        trace, size = draw.choice(traces), draw.randint(1, 9000)
        text = draw.choice(
            [
                f"{word()}.{word()} handled in {size} ms trace={trace}",
                f"[{trace}] {word()} {word()} {draw.random():.4f}",
                f"retry {number % 5} of 5 for {word()}, next in {size} s",
                f"queue={word()} depth={size} {word()}",
            ]
        )
        found.append(f"{stamp} {level} {text}")
    return "\n".join(found)


def _build_json_list(world: World, lines: int) -> str:
    source = world.random
    records = [
        {
            "id": world.new_id() if number % 3 == 0 else number,
            "name": f"{world.word()} {world.word()}",
            "state": source.choice(["open", "closed", "pending", "shipped"]),
            "amount": round(source.uniform(1, 500), 2),
            "updated": f"2024-{source.randint(1, 12):02}-{source.randint(1, 28):02}",
            "note": " ".join(world.word() for _ in range(source.randint(3, 9))),
        }
        for number in range(max(3, lines // 3))
    ]
    return json.dumps(records, indent=source.choice([None, 1]))


def _build_table(world: World, lines: int) -> str:
    draw = world.random
    found = ["region | segment | customers | revenue | share", "-" * 46]
    found += [
        f"{world.word()} | {world.word()} | {draw.randint(1, 90000)} | {draw.uniform(1, 1e6):.2f}"
        f" | {draw.random():.3f}"
        for _ in range(lines)
    ]
    return "\n".join([*found, f"({lines} rows)", f"source: {world.path()}"])


def _build_diff(world: World, lines: int) -> str:
    source, found = world.random, []
    for _ in range(max(1, lines // 25)):
        path = world.path()
        if path[1:2] == ":" or path[0] == "/":
            continue
        found += [
            f"diff --git a/{path} b/{path}",
            f"index {world.planted_id('<h7>')}..{world.planted_id('<h7>')} 100644",
        ]
        found += [
            f"--- a/{path}",
            f"+++ b/{path}",
            f"@@ -{source.randint(1, 400)},7 +{source.randint(1, 400)},9 @@",
        ]
        for _ in range(min(lines, 25)):
            sign = source.choice(["+", "-", " ", " "])
            found.append(
                f"{sign}    {world.word()} = {world.word()}({world.word()}, {source.randint(0, 99)})"
            )
    return "\n".join(found)


def _build_grep(world: World, lines: int) -> str:
    files = [world.path() for _ in range(max(3, lines // 6))]
    return "\n".join(
        f"{world.random.choice(files)}:{world.random.randint(1, 900)}:"
        f" {' '.join(world.word() for _ in range(7))}"
        for _ in range(lines)
    )


def _build_source_code(world: World, lines: int) -> str:
    found = [f'"""Module {world.word()}."""', "import sys", ""]
    for _ in range(max(1, lines // 6)):
        name, argument = world.word(), world.word()
        found += [
            f"def {name}({argument}: str) -> int:",
            f'    """Return the {world.word()} of {world.word()}."""',
        ]
        found += [
            f"    {world.word()} = len({argument}) * {world.random.randint(2, 64)}",
            "    if not found:",
        ]
        found += [f"        raise ValueError({world.word()!r})", ""]
    return "\n".join(found)


def _test_run(world: World, lines: int) -> str:
    passed, failed = world.random.randint(50, 900), world.random.randint(0, 6)
    found = [f"$ {world.command(f'pytest -q -x --maxfail={failed + 1} -k {world.name()}')}"]
    files = [world.path() for _ in range(max(2, lines // 10))]
    found += [f"{world.random.choice(files)}::test_{world.word()} PASSED" for _ in range(lines)]
    return "\n".join(
        [
            *found,
            f"===== {failed} failed, {passed} passed in {world.random.uniform(1, 90):.2f}s =====",
        ]
    )


def find_failures(text: str) -> str:
    """Return the failures in the last line of a test run; empty if there were none."""
    last = text.rpartition("\n")[2]
    counted = last.removeprefix("===== ").partition(",")[0]
    return counted if last.startswith("=====") and counted != "0 failed" else ""


def _build_session(world: World, lines: int) -> str:
    """Return a terminal session: several commands and their output."""
    found: list[str] = []
    for _ in range(max(2, lines // 20)):
        prompt = world.random.choice(
            [
                "$ ",
                "root@web-3:~# ",
                "deploy@ci:/srv$ ",
                "% ",
                "(venv) $ ",
                "+ ",
                "> ",
                "[ec2-user@ip-10-0-0-4 ~]$ ",
            ]
        )
        found.append(prompt + build_shell_line(world))
        found += [
            " ".join(world.word() for _ in range(8)) for _ in range(world.random.randint(5, 30))
        ]
    return "\n".join(found)


def _build_page(world: World, lines: int) -> str:
    source = world.random
    found = [f"# {world.word().title()} {world.word()}", ""]
    for number in range(max(2, lines // 4)):
        sentence = " ".join(world.word() for _ in range(source.randint(25, 60)))
        found += [
            sentence.capitalize() + (f" ({world.known_id()})." if number % 4 == 0 else "."),
            "",
        ]
    return "\n".join(
        [
            *found,
            "References",
            *(f"[{n}] {world.new_id()}, {world.path()}" for n in range(lines // 12 + 1)),
        ]
    )


def _build_mail_thread(world: World, lines: int) -> str:
    found = []
    for _ in range(max(2, lines // 10)):
        found += [
            f"From: {world.word()} <{world.word()}@mail.example.com>",
            f"Subject: Re: {world.known_id()}",
            "",
        ]
        found += [" ".join(world.word() for _ in range(14)) for _ in range(7)]
        found += [f"Attachment: {world.path()}", "--"]
    return "\n".join(found)


_DUMPS: Final[dict[str, list[Callable[[World, int], str]]]] = {
    "coding": [
        _build_diff,
        _build_grep,
        _build_source_code,
        _build_source_code,
        _test_run,
        _build_log,
    ],
    "ops": [_build_log, _build_log, _build_log, _build_session, _build_json_list, _build_table],
    "data": [
        _build_table,
        _build_table,
        _build_table,
        _build_json_list,
        _build_log,
        _build_session,
    ],
    "support": [_build_json_list, _build_mail_thread, _build_mail_thread, _build_page, _build_log],
    "research": [_build_page, _build_page, _build_table, _build_json_list, _build_grep],
}


def build_shell_line(world: World) -> str:
    """Return a typical shell command."""
    draw, name, path = world.random, world.name(), world.path()
    count, port = draw.randint(2, 90), draw.randint(3000, 9000)
    quoted = f'"{path}"' if "\\" in path else path
    return world.command(
        draw.choice(
            [
                f"kubectl -n {name} logs deploy/{world.word()} --since={count}m",
                f"git log --oneline -n {count} -- {quoted}",
                f"curl -sS -H 'Accept: application/json' http://localhost:{port}/{name}",
                f"docker run --rm -v $PWD:/w {name}:latest make {world.word()}",
                f"psql -h db-{name} -c 'vacuum analyze {world.word()}'",
                f"grep -rn {name} {quoted} | sort | uniq -c",
                f"aws s3 cp {quoted} ./{name}/ --recursive",
                f"python -m {name}.{world.word()} --input {quoted} --jobs {count}",
                f"terraform plan -target=module.{name}",
                f"npm run {name} -- --watch=false",
                f"ssh {name}-{count} 'tail -n 200 {quoted}'",
                f"./scripts/{name}.sh --dry-run {quoted}",
                f"make {name} ENV={draw.choice(['prod', 'staging'])}",
            ]
        )
    )
