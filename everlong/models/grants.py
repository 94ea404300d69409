"""Grants: a person's word that later calls of a tool need no approval.

A grant of a thread is in the thread's operational state. A grant of an agent is an object in the store.
"""

import dataclasses
import hashlib
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass
from pydantic_core import to_json, to_jsonable_python

from everlong import limits
from everlong.models.tools import WantedCall

Match = Literal["tool", "arguments"]
"""`tool`: every call of the tool. `arguments`: its calls with the same arguments."""
Scope = Literal["thread", "agent"]
"""`thread`: calls of one thread. `agent`: calls of all threads of the agent in the namespace."""

THREAD_GRANT: Final = "t-"
AGENT_GRANT: Final = "a-"
"""First characters of a grant's id, by its scope."""
GrantId = Annotated[str, Field(pattern=r"^[ta]-[0-9a-f]{16}$")]


@dataclass(frozen=True, kw_only=True)
class Always:
    """What an approval allows beyond its own call."""

    match: Match
    scope: Scope = "thread"
    seconds: Annotated[float, Field(gt=0, le=limits.GRANT_SECONDS_MAX)] | None = None
    """How long; None until it is revoked."""


@dataclass(frozen=True, kw_only=True)
class Grant:
    """A permission for later calls."""

    id: GrantId
    tool: Annotated[str, Field(max_length=limits.CALL_NAME_CHARS_MAX)]
    arguments_digest: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")] = ""
    """Digest of the arguments, from `digest_arguments`; empty for any arguments."""
    arguments: Annotated[str, Field(max_length=limits.CALL_PREVIEW_CHARS_MAX)] = ""
    """Beginning of those arguments; empty for any."""
    by: Annotated[str, Field(max_length=limits.CALL_NAME_CHARS_MAX)]
    """Name of the person who gave it."""
    granted_ms: int
    expires_ms: int | None = None
    thread_id: str = ""
    """The thread whose call the person approved; empty in a thread's own state."""
    agent: str = ""
    """The agent whose threads it is for; empty for a grant of one thread."""

    @property
    def scope(self) -> Scope:
        """Where the grant holds."""
        return "agent" if self.id.startswith(AGENT_GRANT) else "thread"

    def is_active(self, now_ms: int) -> bool:
        """Whether it has not expired."""
        return self.expires_ms is None or now_ms < self.expires_ms

    def allows(self, call: WantedCall, arguments_digest: str, now_ms: int) -> bool:
        """Whether it allows a call.

        Not one that takes no grants or needs several people, nor one that its giver may not approve.
        """
        options = call.options
        return (
            self.is_active(now_ms)
            and options.always
            and options.approvals_needed == 1
            and (not options.approvers or self.by in options.approvers)
            and self.tool == call.tool
            and self.arguments_digest in ("", arguments_digest)
        )


@dataclass(frozen=True, kw_only=True)
class RevokeGrant:
    """Argument of the `revoke_grant` update."""

    id: Annotated[str, Field(max_length=64)]
    by: Annotated[str, Field(max_length=64)] = ""
    reason: Annotated[str, Field(max_length=300)] = ""


_GRANTS: Final = TypeAdapter(tuple[Grant, ...])


def measure_grants(grants: tuple[Grant, ...]) -> int:
    """Return the size of grants in the state's JSON."""
    return len(_GRANTS.dump_json(grants))


def make_grant_id(scope: Scope, request: str) -> str:
    """Return the id of the grant that a request gives: the same if the request is sent again."""
    prefix = AGENT_GRANT if scope == "agent" else THREAD_GRANT
    return prefix + hashlib.blake2b(request.encode(), digest_size=8).hexdigest()


def digest_arguments(tool: str, arguments: object) -> str:
    """Return the digest of a tool's validated arguments, whatever the order of their names.

    128 bits: no attacker may find other arguments with the digest of those that a person has allowed.
    """
    data = to_json(_sort_names(to_jsonable_python(arguments, serialize_unknown=True)))
    name = tool.encode() + b"\0" + data
    return hashlib.blake2b(name, digest_size=16, person=b"everlong-args").hexdigest()


def _sort_names(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sort_names(value[name]) for name in sorted(value)}
    return [_sort_names(each) for each in value] if isinstance(value, list) else value


def is_thread_grant(grant_id: str) -> bool:
    """Whether an id is that of a grant in a thread's state."""
    return grant_id.startswith(THREAD_GRANT)


def describe_grant(grant: Grant) -> dict[str, Any]:
    """Return the fields of a grant for the journal."""
    lasts_ms = None if grant.expires_ms is None else grant.expires_ms - grant.granted_ms
    fields = {
        "id": grant.id,
        "tool": grant.tool,
        "scope": grant.scope,
        "arguments": grant.arguments,
        "seconds": None if lasts_ms is None else lasts_ms / 1000,
    }
    return {name: value for name, value in fields.items() if value not in ("", None)}


def for_display(grant: Grant, thread_id: str) -> Grant:
    """Return a thread's grant with the thread's id, which its state leaves out."""
    return dataclasses.replace(grant, thread_id=thread_id)
