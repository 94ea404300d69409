"""The command `threads`: the list of threads."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from everlong.cli.help import Commands
from everlong.cli.options import Cursor, Json, run_with_client
from everlong.cli.values import whole_number, word

if TYPE_CHECKING:
    from temporalio.client import Client

    from everlong.client.thread_list import ThreadList

commands = Commands()

# Here, since the help and a wrong option need nothing of the client. A test compares both with it.
SORT_KEYS: Final = (
    "started",
    "id",
    "agent",
    "status",
    "stored",
    "growth",
    "steps",
    "resume",
    "lag",
    "pending",
    "tokens",
    "cost",
    "active",
    "attention",
)
COLUMNS: Final = (
    "operational",
    "context",
    "stored",
    "trend",
    "growth",
    "steps",
    "tokens",
    "cost",
    "resume",
    "lag",
    "waits",
    "active",
    "labels",
)
STATUSES: Final = (
    "working",
    "waiting",
    "approval",
    "retrying",
    "held",
    "paused",
    "failed",
    "done",
    "archived",
    "terminated",
    "unknown",
)
_LIMIT_MAX: Final = 200
# Width of the full table of `threads`, with ids of 24 characters.
_WIDE_CHARS: Final = 170


def _parse_sort(value: object) -> str:
    text = str(value)
    word("--sort", SORT_KEYS)(text.removeprefix("-"))
    return text


def _parse_columns(value: object) -> tuple[str, ...]:
    names = tuple(each.strip() for each in str(value).split(",") if each.strip())
    for name in names:
        word("--columns", COLUMNS)(name)
    return names


@commands.command()
def threads(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="Part of an id; all threads by default.")
    ] = "",
    status: Annotated[
        str,
        typer.Option(
            metavar="STATUS",
            parser=word("--status", STATUSES),
            help=f"Only this status: {', '.join(STATUSES[:-1])} or {STATUSES[-1]}.",
        ),
    ] = "",
    agent: Annotated[str, typer.Option(metavar="NAME", help="Only threads of this agent.")] = "",
    label: Annotated[
        str,
        typer.Option(metavar="LABEL", help="Only with this label, as in urgent or team=payments."),
    ] = "",
    age: Annotated[
        str,
        typer.Option(
            metavar="AGE",
            help="Only active within it, as in 7d; or not active for it, as in idle-7d (m, h or d).",
        ),
    ] = "",
    sort: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            parser=_parse_sort,
            help=f"{', '.join(SORT_KEYS[:-1])} or {SORT_KEYS[-1]}; a - before it reverses the order. "
            "By default what needs a person is first; beyond 20,000 threads, the newest are.",
        ),
    ] = "",
    columns: Annotated[
        Any,
        typer.Option(
            metavar="NAMES",
            parser=_parse_columns,
            help=f"Columns of the table, separated by commas: {', '.join(COLUMNS)}.",
        ),
    ] = "",
    limit: Annotated[
        int,
        typer.Option(
            metavar="N", parser=whole_number("--limit", 1, _LIMIT_MAX), help="Threads to list."
        ),
    ] = 50,
    offset: Annotated[
        int,
        typer.Option(metavar="N", parser=whole_number("--offset", 0), help="Threads to pass over."),
    ] = 0,
    cursor: Cursor = "",
    as_json: Json = False,
) -> None:
    """List threads: status, sizes, growth, costs, approvals.

    It queries no thread, so none resumes. Beyond 20,000 threads, TEXT matches only the beginning of ids,
    and one page is read from the server. Any other order, and an --age, reads all threads, and TEXT then
    matches anywhere in an id.

    Examples:
        everlong threads
        everlong threads --status paused --sort=-stored
        everlong threads --label team=payments --sort=-cost --columns steps,tokens,cost
        everlong threads --age idle-30d --status waiting
        everlong threads ops --limit 10 --json

    """
    request = _PageRequest(text, status, agent, sort, offset, limit, cursor, label, age)
    run_with_client(lambda client: _threads(client, request, columns or (), as_json))


class _PageRequest(NamedTuple):
    """Arguments of `ThreadList.page`."""

    text: str
    status: str
    agent: str
    sort: str
    offset: int
    limit: int
    cursor: str
    label: str
    age: str

    @property
    def needs_index(self) -> bool:
        """Whether a large fleet has to be read whole: the server can only list the newest first."""
        return self.sort not in ("", "-started") or bool(self.offset) or bool(self.age)


async def _threads(
    client: "Client", request: _PageRequest, columns: Sequence[str], as_json: bool
) -> None:
    from everlong.cli.output import build_threads_table, describe_page, print_json
    from everlong.console import err, out, print_table, sanitise

    thread_list = await read_thread_list(client, index=request.needs_index)
    page = await thread_list.page(*request)  # type: ignore[arg-type] # `sort` is one of Sort
    if page.source == "index" and not page.read_ms:  # No id begins with the text.
        with err.status("reading threads"):
            await thread_list.read()
        page = await thread_list.page(*request)  # type: ignore[arg-type] # `sort` is one of Sort
    if as_json:
        print_json(page)
        return
    is_wide = not out.is_terminal or out.width >= _WIDE_CHARS
    print_table(build_threads_table(page, is_wide=is_wide, columns=columns))
    for line in describe_page(page, is_search=bool(request.text)):
        err.print(sanitise(line), markup=False)


async def read_thread_list(client: "Client", *, index: bool = True) -> "ThreadList":
    """Return the list of all threads, read from the server."""
    from everlong.client.thread_list import ThreadList
    from everlong.console import err

    async def get_client() -> "Client":
        return client

    thread_list = ThreadList(get_client)
    with err.status("reading threads"):
        await thread_list.read(index=index)
    return thread_list
