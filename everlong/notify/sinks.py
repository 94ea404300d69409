"""Sinks: where notifications go, which ones each sink wants, and when.

`Sink` is the base of the webhook, Slack and e-mail sinks. `Notify` is the whole configuration. Both are
checked when they are made, so that a worker with a wrong configuration does not start.
"""

import dataclasses
import functools
import re
import zoneinfo
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import ClassVar, Final
from urllib.parse import quote, urlsplit

from everlong import limits
from everlong.errors import ConfigError, suggest
from everlong.errors import quote as quote_name
from everlong.models.notices import Event, Notification, build_mask
from everlong.notify.http import is_loopback_url

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_HOURS: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
_DIGEST_MINUTES_MAX: Final = 24 * 60
_SECONDS_MAX: Final = 30.0
_ALL: Final = frozenset(Event) - {Event.TEST}
# Ids that a path can hold as they are; others are parameters, as in the dashboard's own links.
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*")


class SinkFailed(Exception):
    """A sink did not take a message. The text holds neither secrets nor contents."""

    def __init__(self, text: str, *, is_permanent: bool = False, wait_seconds: float = 0.0) -> None:
        super().__init__(text)
        self.is_permanent = is_permanent
        """Whether the sink refuses this message for ever, so that it is not tried again."""
        self.wait_seconds = wait_seconds
        """Time that the sink asks for before the next request."""


@dataclasses.dataclass(frozen=True)
class QuietHours:
    """Hours of each day in which nothing is sent: `QuietHours("22:00-07:00", "Europe/Zurich")`."""

    hours: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        if not _HOURS.fullmatch(self.hours):
            raise ConfigError(
                f"quiet hours are {quote_name(self.hours)}; write them as in 22:00-07:00"
            )
        if self._begin == self._end:
            raise ConfigError(f"quiet hours {self.hours} begin and end at the same time")
        try:
            zoneinfo.ZoneInfo(self.zone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            raise ConfigError(
                f"there is no time zone {quote_name(self.zone)} on this machine; write it as in "
                "Europe/Zurich, and install the package tzdata if the system has no zones"
            ) from None

    @property
    def _begin(self) -> time:
        return time.fromisoformat(self.hours[:5])

    @property
    def _end(self) -> time:
        return time.fromisoformat(self.hours[6:])

    def find_end_ms(self, now_ms: int) -> int | None:
        """Return when the quiet hours end that it is in now, in Unix milliseconds; None outside them."""
        zone = zoneinfo.ZoneInfo(self.zone)
        now = datetime.fromtimestamp(now_ms / 1000, zone)
        # Those that began yesterday, or begin today.
        for day in (now.date() - timedelta(days=1), now.date()):
            last = day if self._begin < self._end else day + timedelta(days=1)
            begin = datetime.combine(day, self._begin, zone)
            end = datetime.combine(last, self._end, zone)
            # In UTC, since times of one zone are compared by the clock on the wall.
            if begin.astimezone(UTC) <= now.astimezone(UTC) < end.astimezone(UTC):
                return int(end.timestamp() * 1000)
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outgoing:
    """One message to a sink: one notification, or those of a digest."""

    key: str
    """Idempotency key: that of the notification, or one of all of them."""
    items: tuple[Notification, ...]
    """Without contents that the sink may not receive."""
    base_url: str
    """URL of the dashboard; empty if none is configured."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sink:
    """Base of the sinks: which notifications a sink wants, and when.

    Args:
        name: Its name in logs, metrics and histories: small letters, digits, `-` and `_`.
        events: Events that it gets; all by default.
        agents: Agents whose threads it hears of; all by default.
        tools: Tools whose approvals it hears of; all by default. Other events are not filtered by it.
        contents: Whether messages have the beginning of a call's arguments. Off by default.
        quiet: Hours in which nothing is sent; it is sent together, as a digest, when they end.
        digest_minutes: Collect notifications and send them together this often; 0 sends each at once.
        seconds_max: Timeout of one request.

    """

    kind: ClassVar[str] = ""

    name: str
    events: Sequence[str] = ()
    agents: Sequence[str] = ()
    tools: Sequence[str] = ()
    contents: bool = False
    quiet: QuietHours | None = None
    digest_minutes: int = 0
    seconds_max: float = limits.NOTIFY_SECONDS

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"a sink is named {quote_name(self.name)}; use at most 32 small letters, digits, - and _"
            )
        for field in ("events", "agents", "tools"):
            check_names(self.name, field, getattr(self, field))
        known = sorted(_ALL)
        for event in self.events:
            if event not in known:
                raise self.make_error(
                    f"there is no event {quote_name(event)}.{suggest(event, known)} Events: "
                    f"{', '.join(known)}"
                )
        if not 0 <= self.digest_minutes <= _DIGEST_MINUTES_MAX:
            raise self.make_error(
                f"digest_minutes is {self.digest_minutes}; give 0 to {_DIGEST_MINUTES_MAX}"
            )
        if not 0 < self.seconds_max <= _SECONDS_MAX:
            raise self.make_error(
                f"seconds_max is {self.seconds_max}; give up to {_SECONDS_MAX:.0f}"
            )

    def make_error(self, text: str) -> ConfigError:
        """Return a configuration error that names this sink."""
        return ConfigError(f"sink {self.name}: {text}")

    @functools.cached_property
    def wanted_events(self) -> frozenset[Event]:
        """Events that this sink gets."""
        return frozenset(map(Event, self.events)) if self.events else _ALL

    def wants(self, item: Notification) -> bool:
        """Return whether this sink gets a notification."""
        if item.event == Event.TEST:
            return True
        if item.event not in self.wanted_events:
            return False
        if self.agents and item.agent and item.agent not in self.agents:
            return False
        return self.wants_tool(item.tool)

    def wants_tool(self, tool: str) -> bool:
        """Return whether this sink gets a tool's approvals."""
        return not self.tools or not tool or tool in self.tools

    def find_due(self, now_ms: int) -> tuple[int, str] | None:
        """Return when a notification is sent, and with which group; None if at once."""
        due_ms = now_ms
        if self.digest_minutes:
            every_ms = self.digest_minutes * 60_000
            due_ms = (now_ms // every_ms + 1) * every_ms
        if self.quiet is not None and (end_ms := self.quiet.find_end_ms(due_ms)) is not None:
            due_ms = end_ms
        return None if due_ms == now_ms else (due_ms, f"digest-{due_ms}")

    async def send(self, message: Outgoing) -> None:
        """Send a message. Raises `SinkFailed`."""
        raise NotImplementedError

    def describe(self) -> str:
        """Return where it sends to, without secrets."""
        raise NotImplementedError


def check_names(sink: str, field: str, names: object) -> None:
    """Reject a list of names that is not one: a single string would be read as its letters."""
    if (
        isinstance(names, str)
        or not isinstance(names, Sequence)
        or len(names) > limits.NOTIFY_NAMES_MAX
        or not all(isinstance(each, str) and each for each in names)
    ):
        raise ConfigError(
            f"sink {sink}: {field} is not a list of at most {limits.NOTIFY_NAMES_MAX} names"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Notify:
    """The configuration of notifications, for `EverlongPlugin(notify=...)`.

    Args:
        sinks: Where notifications go.
        url: URL of the dashboard, as people open it: each message has a link to the thread.
        deadline_minutes: A reminder is sent this long before an approval's deadline, or in the last
            fifth of its time, if that is later.
        held_minutes: `everlong serve` reports threads that have been held for this long, and task queues
            without workers.

    """

    sinks: Sequence[Sink] = ()
    url: str = ""
    deadline_minutes: float = 10.0
    held_minutes: float = 10.0

    def __post_init__(self) -> None:
        names = [sink.name for sink in self.sinks]
        if len(set(names)) != len(names):
            raise ConfigError(f"two sinks have the same name: {', '.join(sorted(names))}")
        if len(names) > limits.NOTIFY_SINKS_MAX:
            raise ConfigError(f"there are {len(names)} sinks; at most {limits.NOTIFY_SINKS_MAX}")
        if self.url:
            check_url("the dashboard", self.url)
        if not 0 < self.deadline_minutes < 1e5 or not 0 < self.held_minutes < 1e5:
            raise ConfigError("deadline_minutes and held_minutes are above 0, in minutes")

    def find(self, name: str) -> Sink | None:
        """Return the sink with a name; None if it was removed from the configuration."""
        return next((sink for sink in self.sinks if sink.name == name), None)

    def build_mask(self, agent: str) -> int:
        """Return what sinks want of an agent's threads, as `models.notices.build_mask` returns it."""
        sinks = [each for each in self.sinks if not each.agents or agent in each.agents]
        events = frozenset(event for sink in sinks for event in sink.wanted_events)
        return build_mask(events, contents=any(sink.contents for sink in sinks))

    def wants_tool(self, agent: str, tool: str) -> bool:
        """Return whether a sink gets a tool's approvals."""
        return any(
            (not sink.agents or agent in sink.agents) and sink.wants_tool(tool)
            for sink in self.sinks
        )

    def find_reminder_ms(self, item: Notification) -> int | None:
        """Return when to remind of a pending approval; None if no sink wants that."""
        if item.event not in (Event.ASKED, Event.ESCALATED) or item.deadline_ms is None:
            return None
        near = dataclasses.replace(item, event=Event.DEADLINE_NEAR)
        if not any(sink.wants(near) for sink in self.sinks):
            return None
        before_ms = min(self.deadline_minutes * 60_000, (item.deadline_ms - item.ms) / 5)
        return item.deadline_ms - int(before_ms)


def check_url(what: str, url: str) -> None:
    """Reject a URL that is not http or https, and plain http to another machine."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # The second raises for a wrong port.
    except ValueError:
        host, parts = None, urlsplit("")
    if not host or parts.scheme not in ("http", "https") or not url.isascii():
        raise ConfigError(
            f"the URL of {what} is not valid; write it as in https://example.com/path"
        )
    if parts.username or parts.password or any(c.isspace() for c in url):
        raise ConfigError(f"the URL of {what} has a user name or a space: leave it out")


def require_https(what: str, url: str) -> None:
    """Reject plain http to another machine: secrets and signatures would be readable on the way."""
    check_url(what, url)
    if urlsplit(url).scheme != "https" and not is_loopback_url(url):
        raise ConfigError(f"the URL of {what} is not https; plain http is for this machine alone")


def build_link(base_url: str, item: Notification) -> str:
    """Return the link to a notification's thread and approval; empty without a dashboard's URL."""
    if not base_url:
        return ""
    base_url = base_url.rstrip("/")
    if not item.thread_id:
        return f"{base_url}/"
    fragment = ""
    if is_about_approval(item):
        fragment = f"#approval-{quote(item.about, safe='')}"
    elif item.event == Event.OUTCOME_UNKNOWN:
        fragment = f"#outcome-{quote(item.about, safe='')}"
    if _PLAIN_ID.fullmatch(item.thread_id):
        return f"{base_url}/threads/{item.thread_id}{fragment}"
    return f"{base_url}/threads/?id={quote(item.thread_id, safe='')}{fragment}"


def is_about_approval(item: Notification) -> bool:
    """Return whether a notification is about one approval."""
    return item.event in _APPROVAL_EVENTS


_APPROVAL_EVENTS: Final = frozenset(
    {Event.ASKED, Event.DEADLINE_NEAR, Event.ESCALATED, Event.DECIDED}
)


def list_names(sinks: Iterable[Sink]) -> str:
    """Return the names of sinks, for a message."""
    return ", ".join(sink.name for sink in sinks) or "none"
