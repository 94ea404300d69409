"""Slack sink: messages with the buttons Approve and Deny, and the requests that the buttons send.

Slack signs each request with a secret that the app and Slack share. The name of the person who decides
comes from configuration, by the id of the Slack user: display names can be changed by their owners.
"""

import collections
import dataclasses
import hashlib
import hmac
import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final
from urllib.parse import parse_qs, urlsplit

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import to_json

from everlong import limits
from everlong.models.notices import Event, Notification
from everlong.notify.http import RequestFailed, is_loopback_url, post
from everlong.notify.sinks import Outgoing, Sink, SinkFailed, build_link, require_https
from everlong.notify.texts import ITEMS_SHOWN_MAX, describe, describe_all, describe_arguments
from everlong.notify.webhook import check_status

API_URL: Final = "https://slack.com/api/"
CALLBACK_PATH: Final = "/notify/slack"
"""Path of `everlong serve` to which Slack posts the buttons' requests."""
APPROVE: Final = "everlong_approve"
DENY: Final = "everlong_deny"
_RESPONSE_HOST: Final = "hooks.slack.com"
_USER: Final = re.compile(r"[UW][A-Z0-9]{2,20}")
_SECRET_CHARS_MIN: Final = 16
# Slack refuses longer texts, and longer values and links of buttons.
_TEXT_CHARS_MAX: Final = 2900
_VALUE_CHARS_MAX: Final = 2000
_LINK_CHARS_MAX: Final = 3000
_BLOCKS_MAX: Final = 50
# Slack's own advice for the age of a request.
AGE_SECONDS_MAX: Final = 300.0
CALLBACK_BYTES_MAX: Final = 64 * limits.KIB
# Requests within the age above: more decisions than people make. 64 bytes each.
_REPLAYS_MAX: Final = 10_000
# Errors of Slack after which the same message fails again.
_PERMANENT: Final = frozenset({"invalid_blocks", "msg_too_long", "no_text"})
_ERROR: Final = re.compile(r"[a-z_]{1,60}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slack(Sink):
    """Posts to a Slack channel.

    Args:
        channel: Id of the channel, as in C0123456789.
        token: Bot token of the Slack app, with the scope `chat:write`.
        signing_secret: Signing secret of the app. `everlong serve` checks the buttons' requests with it;
            without one, messages have no buttons.
        users: Names of the people who may decide, by the id of their Slack user.
        api_url: Address of Slack's API, for tests.

    """

    kind: ClassVar[str] = "slack"

    channel: str
    token: str = dataclasses.field(repr=False)
    signing_secret: str = dataclasses.field(default="", repr=False)
    users: Mapping[str, str] = dataclasses.field(default_factory=dict)
    api_url: str = API_URL

    def __post_init__(self) -> None:
        super().__post_init__()
        require_https(f"sink {self.name}", self.api_url)
        if not self.channel or not self.token:
            raise self.make_error("it needs a channel and a token")
        if not self.token.isascii() or not self.token.isprintable():
            raise self.make_error("its token is not valid: is there a line break in it?")
        if self.signing_secret and len(self.signing_secret) < _SECRET_CHARS_MIN:
            raise self.make_error("its signing secret is too short: copy it from the Slack app")
        if len(self.users) > limits.NOTIFY_NAMES_MAX:
            raise self.make_error(f"it has more than {limits.NOTIFY_NAMES_MAX} users")
        for user, name in self.users.items():
            if not _USER.fullmatch(user) or name != name.strip() or not 0 < len(name) <= 64:
                raise self.make_error(
                    "users are written as U0123456789 = 'name', with a name of 1 to 64 characters and "
                    "no blank at its ends"
                )

    async def send(self, message: Outgoing) -> None:
        """See `Sink`."""
        try:
            answer = await post(
                f"{self.api_url.rstrip('/')}/chat.postMessage",
                to_json(self.build_message(message)),
                {
                    "Content-Type": "application/json; charset=utf-8",
                    "Authorization": f"Bearer {self.token}",
                },
                seconds_max=self.seconds_max,
                reads_body=True,
            )
        except RequestFailed as error:
            raise SinkFailed(str(error)) from None
        check_status("Slack", answer.status, answer.headers.get("retry-after", ""))
        error_name = _read_error(answer.body)
        if error_name:
            raise SinkFailed(f"Slack answered {error_name}", is_permanent=error_name in _PERMANENT)

    def describe(self) -> str:
        """See `Sink`."""
        return f"Slack channel {self.channel}"

    def build_message(self, message: Outgoing) -> dict[str, Any]:
        """Return the arguments of `chat.postMessage`."""
        blocks: list[dict[str, Any]] = []
        shown = 0
        for item in message.items[:ITEMS_SHOWN_MAX]:
            more = self._build_blocks(item, message)
            if len(blocks) + len(more) >= _BLOCKS_MAX:
                break
            blocks += more
            shown += 1
        if len(message.items) > shown:
            blocks.append(_build_text(f"and {len(message.items) - shown} more"))
        return {
            "channel": self.channel,
            # Shown by notifications of the desktop, where it is read as Slack's markup.
            "text": _escape(describe_all(message.items)),
            "blocks": blocks,
            "unfurl_links": False,
            "metadata": {
                "event_type": "everlong_notification",
                "event_payload": {"key": message.key},
            },
        }

    def _build_blocks(self, item: Notification, message: Outgoing) -> list[dict[str, Any]]:
        blocks = [_build_text(describe(item))]
        if item.arguments:
            blocks.append(_build_text(describe_arguments(item)))
        buttons = []
        value = _build_value(item, is_alone=len(message.items) == 1)
        if value and self.signing_secret:
            buttons.append(_build_button("Approve", APPROVE, style="primary", value=value))
            buttons.append(_build_button("Deny", DENY, style="danger", value=value))
        link = build_link(message.base_url, item)
        if 0 < len(link) <= _LINK_CHARS_MAX:
            buttons.append(_build_button("Open", "everlong_open", url=link))
        if buttons:
            blocks.append({"type": "actions", "elements": buttons})
        return blocks


def _build_text(text: str) -> dict[str, Any]:
    # Plain text: names and arguments that look like markup are shown as they are.
    shown = {"type": "plain_text", "text": text[:_TEXT_CHARS_MAX], "emoji": False}
    return {"type": "section", "text": shown}


def _build_button(text: str, action: str, **more: str) -> dict[str, Any]:
    label = {"type": "plain_text", "text": text}
    return {"type": "button", "text": label, "action_id": action, **more}


def _build_value(item: Notification, *, is_alone: bool) -> str:
    """Return what a button sends; empty without a decision to make, or if an id is too long."""
    if item.event not in (Event.ASKED, Event.DEADLINE_NEAR, Event.ESCALATED):
        return ""
    value = json.dumps(
        {
            "thread": item.thread_id,
            "approval": item.about,
            "run": item.run_id,
            "alone": is_alone,
        }
    )
    return value if len(value) <= _VALUE_CHARS_MAX else ""


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _read_error(body: bytes) -> str:
    """Return the error of an answer of Slack's API; empty if it took the message."""
    try:
        answer = json.loads(body)
    except ValueError:
        return "unreadable_answer"
    if isinstance(answer, dict) and answer.get("ok") is True:
        return ""
    error = answer.get("error", "") if isinstance(answer, dict) else ""
    return error if isinstance(error, str) and _ERROR.fullmatch(error) else "unknown_error"


# Callbacks: the requests that the buttons send.


class CallbackRefused(Exception):
    """A callback is forged, old, repeated, or not one of ours. The text is for the log."""


@dataclass(frozen=True)
class _User:
    id: str = Field(max_length=30)


@dataclass(frozen=True)
class _Action:
    action_id: str = Field(max_length=255)
    value: str = Field(default="", max_length=_VALUE_CHARS_MAX)


@dataclass(frozen=True)
class _Payload:
    type: str
    user: _User
    actions: list[_Action] = Field(min_length=1, max_length=10)
    response_url: str = Field(default="", max_length=1000)


@dataclass(frozen=True)
class _Value:
    thread: str = Field(min_length=1, max_length=1000)
    approval: str = Field(min_length=1, max_length=64)
    run: str = Field(default="", max_length=64)
    alone: bool = False


_PAYLOAD: Final = TypeAdapter(_Payload)
_VALUE: Final = TypeAdapter(_Value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Callback:
    """A person's click on Approve or Deny."""

    sink: Slack
    thread_id: str
    approval_id: str
    run_id: str
    """Run that requested the approval, whose trace the decision belongs to."""
    approve: bool
    user: str
    """Id of the Slack user."""
    by: str
    """Name of the person; empty if the configuration has none for this user."""
    is_alone: bool
    """Whether the message is about this approval only, so that the outcome may take its place."""
    response_url: str
    """Where the outcome is posted to; empty if Slack gave none that may be used."""
    signature: str
    """Signature of the request, from which the id of the decision's update is derived."""


class CallbackReader:
    """Checks callbacks, and reads them. Keeps the signatures of recent ones, to refuse replays."""

    def __init__(self, sinks: list[Slack], clock: Callable[[], float] = time.time) -> None:
        self._sinks = [sink for sink in sinks if sink.signing_secret]
        self._clock = clock
        self._seen: collections.OrderedDict[str, float] = collections.OrderedDict()

    def read(self, headers: Mapping[str, str], body: bytes) -> Callback | None:
        """Return the click; None for a request that decides nothing, such as of the button Open.

        Raises `CallbackRefused` unless the request is signed, recent and new.
        """
        signature = headers.get("x-slack-signature", "")
        sinks = self._verify(headers.get("x-slack-request-timestamp", ""), signature, body)
        try:
            [payload] = parse_qs(body.decode(), strict_parsing=True, max_num_fields=10)["payload"]
            click = _PAYLOAD.validate_json(payload)
            if click.type != "block_actions" or click.actions[0].action_id not in (APPROVE, DENY):
                return None
            value = _VALUE.validate_json(click.actions[0].value)
        except (ValidationError, ValueError, KeyError):
            raise CallbackRefused(
                "it is signed, but not a click on one of Everlong's buttons"
            ) from None
        # Sinks of one app share its secret: the one that knows the user decides.
        sink = next((each for each in sinks if click.user.id in each.users), sinks[0])
        return Callback(
            sink=sink,
            thread_id=value.thread,
            approval_id=value.approval,
            run_id=value.run,
            approve=click.actions[0].action_id == APPROVE,
            user=click.user.id,
            by=sink.users.get(click.user.id, ""),
            is_alone=value.alone,
            response_url=click.response_url if _may_respond(sink, click.response_url) else "",
            signature=signature,
        )

    def _verify(self, timestamp: str, signature: str, body: bytes) -> list[Slack]:
        """Return the sinks whose secret signed a request."""
        now = self._clock()
        if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
            raise CallbackRefused("it has no valid timestamp")
        if abs(now - int(timestamp)) > AGE_SECONDS_MAX:
            raise CallbackRefused(f"it is older than {AGE_SECONDS_MAX:.0f} s")
        # All secrets are compared, so that the time shows nothing.
        found = [
            sink
            for sink in self._sinks
            if hmac.compare_digest(
                sign_callback(sink.signing_secret, timestamp, body).encode(), signature.encode()
            )
        ]
        if not found:
            raise CallbackRefused("its signature is wrong")
        while self._seen and (
            len(self._seen) >= _REPLAYS_MAX
            or now - next(iter(self._seen.values())) > 2 * AGE_SECONDS_MAX
        ):
            self._seen.popitem(last=False)
        if signature in self._seen:
            raise CallbackRefused("it was sent before")
        self._seen[signature] = now
        return found


def sign_callback(secret: str, timestamp: str, body: bytes) -> str:
    """Return Slack's signature of a request, version 0."""
    signed = hmac.new(secret.encode(), b"v0:" + timestamp.encode() + b":" + body, hashlib.sha256)
    return f"v0={signed.hexdigest()}"


def _may_respond(sink: Slack, url: str) -> bool:
    """Return whether the outcome may be posted to a URL: to Slack alone, or where tests run Slack."""
    try:
        parts = urlsplit(url)
    except ValueError:  # As in `https://[`.
        return False
    if parts.scheme == "https" and parts.netloc == _RESPONSE_HOST:
        return True
    ours = urlsplit(sink.api_url)
    return is_loopback_url(sink.api_url) and (parts.scheme, parts.netloc) == (
        ours.scheme,
        ours.netloc,
    )


async def respond(callback: Callback, text: str, *, is_done: bool) -> None:
    """Post the outcome of a click: to the channel if it is done, else to this person only.

    It replaces the message if that is about this approval only. Raises `SinkFailed`.
    """
    if not callback.response_url:
        return
    answer = {
        "text": _escape(text[:_TEXT_CHARS_MAX]),
        "replace_original": is_done and callback.is_alone,
        "response_type": "in_channel" if is_done else "ephemeral",
    }
    try:
        found = await post(
            callback.response_url,
            to_json(answer),
            {"Content-Type": "application/json"},
            seconds_max=callback.sink.seconds_max,
        )
    except RequestFailed as error:
        raise SinkFailed(str(error)) from None
    check_status("Slack", found.status, "")
