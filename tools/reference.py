"""Generators of the site's reference pages: commands, settings, metrics, the API, docstrings.

Pages are generated while the site is built, so they cannot be stale: see `tools.site`.
"""

import ast
import asyncio
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from everlong import config, errors, worker_options
from everlong.admin.web.app import create_admin_app
from everlong.admin.web.auth import Access
from everlong.admin.web.context import AppContext
from everlong.admin.web.openapi import Model, Operation, TypeText, describe_api
from everlong.admin.web.pages.filters import split_code
from everlong.cli.app import GROUPS, load_command
from everlong.cli.help import Command, describe_param, is_argument
from everlong.storage import open_store
from everlong.storage.pack_store import PackStore
from everlong.telemetry import METRICS
from everlong.telemetry.span_table import CONTENTS, IDENTITY, SPANS

_MARKS: Final = re.compile(r"([\\`*_{}\[\]<>|#~$])")


def escape(text: str) -> str:
    """Return plain text with code in backticks as Markdown, for a cell of a table."""
    return "".join(
        code(part) if is_code else _MARKS.sub(r"\\\1", part)
        for part, is_code in split_code(" ".join(text.split()))
    )


def code(text: str) -> str:
    """Return text as code, for a cell of a table; empty text stays empty."""
    return f"`{text.replace('|', chr(92) + '|')}`" if text else ""


def build_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, without the columns that are empty in all rows."""
    body = list(rows)
    kept = [at for at in range(len(head)) if any(row[at] for row in body)]
    lines = [[line[at] for at in kept] for line in (head, ["---"] * len(head), *body)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def generate_cli() -> str:
    """Return the reference of the command line, from the commands' own help."""
    parts = []
    for group, commands in GROUPS.items():
        parts.append(f"## {group.capitalize()}\n")
        parts += [_describe_command(f"everlong {name}", load_command(name)) for name in commands]
    return "\n".join(parts)


def _describe_command(path: str, command: Command) -> str:
    params = [each for each in command.params if is_argument(each) or not each.hidden]  # type: ignore[attr-defined] # options have it
    parts = [f"### {path}\n", *(f"{escape(each)}\n" for each in (command.summary, *command.text))]
    if command.examples:
        parts.append("```sh\n{}\n```\n".format("\n".join(command.examples)))
    rows = [(code(name), escape(text)) for name, text in map(describe_param, params)]
    if rows:
        parts.append(build_table(["argument or option", "meaning"], rows))
    return "\n".join(parts)


def generate_settings() -> str:
    """Return the table of the settings, from the fields of `Settings` and `WorkerOptions`."""
    defaults = config.load_settings({"EVERLONG_DATA_DIR": "/nowhere"})
    rows = [
        *_describe_settings(config.Settings, defaults),
        *_describe_settings(worker_options.WorkerOptions, defaults.worker),
    ]
    return build_table(["variable", "meaning", "default"], rows)


def _describe_settings(owner: type, defaults: object) -> Iterable[tuple[str, str, str]]:
    documented = read_field_docs(owner)
    for field in dataclasses.fields(owner):
        names, colon, meaning = documented.get(field.name, "").partition(": ")
        if colon and names.startswith("`"):
            default = getattr(defaults, field.name)
            if field.name == "data_dir":
                default = config.DATA_DIR_DEFAULT
            shown = "0" if default is False else str(default or "")
            text = " ".join(meaning.split()).replace("|", "\\|")
            yield names, text[:1].upper() + text[1:], code(shown)


def read_field_docs(owner: type) -> dict[str, str]:
    """Return the docstring of each field of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    assert isinstance(body, ast.ClassDef)  # noqa: S101 - the source of a class
    found = {}
    for field, doc in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(doc, ast.Expr)
            and isinstance(doc.value, ast.Constant)
        ):
            found[field.target.id] = inspect.cleandoc(str(doc.value.value))
    return found


def generate_metrics() -> str:
    """Return the tables of the metrics."""
    parts = []
    for source, title in (("worker", "Of workers"), ("admin", "Of `everlong serve`")):
        rows = [
            (
                code(each.name),
                each.kind.replace("_", " "),
                code(each.unit),
                ", ".join(map(code, each.labels)),
                each.description,
            )
            for each in METRICS
            if each.source == source
        ]
        parts += [f"### {title}\n", build_table(["name", "kind", "unit", "labels", "is"], rows)]
    return "\n".join(parts)


def generate_spans() -> str:
    """Return the table of the spans, after the attributes that all of them have."""
    rows = [
        (code(each.name), escape(each.measures), ", ".join(map(code, each.attributes)))
        for each in SPANS
    ]
    parts = [
        f"A span of a thread has {code(IDENTITY[0])}; one of a run also {code(IDENTITY[1])}, and one "
        f"of an agent also {code(IDENTITY[2])}.\n",
        build_table(["span", "measures", "other attributes"], rows),
        f"Only if contents are switched on: {', '.join(map(code, CONTENTS))}.\n",
    ]
    return "\n".join(parts)


def generate_http() -> str:
    """Return the reference of the HTTP API, from its OpenAPI document."""
    api = describe_api(build_openapi())
    parts = []
    for resource, operations in api.operations.items():
        parts.append(f"## {resource.capitalize()}\n")
        parts += [_describe_operation(each) for each in operations]
    parts += [
        "## Errors\n",
        build_table(["status", "meaning"], [(k, escape(v)) for k, v in api.errors.items()]),
        "## Models\n",
        *(_describe_model(each) for each in api.models),
    ]
    return "\n".join(parts)


def build_openapi() -> dict[str, Any]:
    """Return the OpenAPI document of `everlong serve`. Nothing is started or connected."""

    async def connect() -> Any:
        raise AssertionError("the document needs no connection")

    async def build() -> dict[str, Any]:
        context = AppContext(connect, PackStore(open_store("memory:")), task_queue="everlong")
        return create_admin_app(context, Access()).openapi()

    return asyncio.run(build())


def _describe_operation(operation: Operation) -> str:
    parts = [f"### {operation.method} {escape(operation.path)}\n", f"{escape(operation.summary)}\n"]
    if operation.description:
        parts.append(f"{escape(operation.description)}\n")
    if operation.parameters:
        parts.append(
            build_table(
                ["parameter", "in", "type", "default", "meaning"],
                [
                    (
                        code(each.name),
                        each.place,
                        _show_type(each.type),
                        code(each.default),
                        escape(each.description),
                    )
                    for each in operation.parameters
                ],
            )
        )
    if operation.body is not None:
        parts.append(f"Body: {_show_type(operation.body)}\n")
    answers = [
        f"{each.status}: {_show_type(each.type) or escape(each.description)}"
        for each in operation.answers
    ]
    parts.append(f"Returns {'; '.join(answers)}\n")
    return "\n".join(parts)


def _describe_model(model: Model) -> str:
    parts = [f"### {model.name}\n"]
    if model.description:
        parts.append(f"{escape(model.description)}\n")
    if model.values:
        parts.append("One of " + ", ".join(map(code, model.values)) + ".\n")
    if model.fields:
        parts.append(
            build_table(
                ["field", "type", "default", "meaning"],
                [
                    (
                        code(each.name),
                        _show_type(each.type),
                        "required" if each.is_required else code(each.default),
                        escape(each.description),
                    )
                    for each in model.fields
                ],
            )
        )
    return "\n".join(parts)


def _show_type(found: TypeText) -> str:
    """Return a type as code, with a link for each model in it."""
    shown = [
        f"[`{part}`](#{part.lower()})" if is_model else code(part.strip())
        for part, is_model in found.parts
    ]
    return " ".join(part for part in shown if part)


# What users import, in the order of the page. `everlong.errors` is a tree, and has its own section.
PYTHON: Final[Sequence[tuple[str, str, Sequence[str]]]] = (
    (
        "everlong",
        "The plugin and the agent",
        ("EverlongPlugin", "Agent", "tool", "Tool", "Reply", "Model", "CallInfo", "current_call"),
    ),
    ("everlong", "Talk to threads", ("thread", "ask", "threads", "ThreadStart")),
    ("everlong.client.thread", "", ("ThreadHandle",)),
    ("everlong", "Limits", ("Policy",)),
    ("everlong", "Stores", ("open_store", "BlobStore")),
    ("everlong.codecs", "The codec alone", ("EverlongCodec",)),
    (
        "everlong.notify",
        "Notifications",
        ("Notify", "Webhook", "Slack", "Email", "QuietHours", "load_notify", "Sink"),
    ),
    ("everlong.live", "Live output", ("LiveServer",)),
    ("everlong.agents", "", ("StreamingModel",)),
    ("everlong.testing", "Testing", ()),
)


def generate_python() -> str:
    """Return the directives of the Python reference. Sphinx reads the docstrings."""
    parts = []
    for module, title, names in PYTHON:
        if title:
            parts.append(f"## {title}\n")
        found = importlib.import_module(module)
        for name in names or found.__all__:
            kind = "autoclass" if inspect.isclass(getattr(found, name)) else "autofunction"
            members = "\n   :members:" if kind == "autoclass" else ""
            parts.append(f"```{{eval-rst}}\n.. {kind}:: {module}.{name}{members}\n```\n")
    return "\n".join(parts)


def generate_errors() -> str:
    """Return the tree of errors, as its module draws it."""
    return "\n".join(_show_docstring(errors.__doc__ or ""))


def _show_docstring(text: str) -> Iterable[str]:
    """Yield the paragraphs of a docstring as Markdown: indented ones are drawings."""
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        if paragraph.startswith("    "):
            yield f"```text\n{textwrap.dedent(paragraph)}\n```\n"
        else:
            yield paragraph + "\n"


GENERATORS: Final[dict[str, Callable[[], str]]] = {
    "cli": generate_cli,
    "errors": generate_errors,
    "http": generate_http,
    "metrics": generate_metrics,
    "python": generate_python,
    "settings": generate_settings,
    "spans": generate_spans,
}
