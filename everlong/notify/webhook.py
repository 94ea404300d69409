"""Webhook sink: a signed POST of JSON.

The signature covers the time and the body, so a receiver can refuse requests that are forged or old. The
idempotency key is the same for each attempt, so a receiver can drop what it has already.
"""

import dataclasses
import hashlib
import hmac
import time
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from pydantic_core import to_json

from everlong.models.notices import Notification
from everlong.notify.http import RequestFailed, post
from everlong.notify.sinks import Outgoing, Sink, SinkFailed, build_link, require_https
from everlong.notify.texts import describe

KEY_HEADER: Final = "Everlong-Key"
TIME_HEADER: Final = "Everlong-Timestamp"
SIGNATURE_HEADER: Final = "Everlong-Signature"
_SECRET_CHARS_MIN: Final = 16
# The receiver has understood the request, and will never take this one.
_REFUSALS: Final = frozenset({400, 413, 422})
_WAIT_SECONDS_MAX: Final = 3600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Webhook(Sink):
    """Posts JSON to a URL, signed with a secret.

    Args:
        url: Where to post to: https, or http on this machine.
        secret: Key of the signature, 16 characters or more.

    """

    kind: ClassVar[str] = "webhook"

    url: str
    secret: str = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_https(f"sink {self.name}", self.url)
        if len(self.secret) < _SECRET_CHARS_MIN:
            raise self.make_error(
                f"its secret has less than {_SECRET_CHARS_MIN} characters. Make one with: openssl rand "
                "-hex 32"
            )

    async def send(self, message: Outgoing) -> None:
        """See `Sink`."""
        body = build_body(message)
        timestamp = str(int(time.time()))
        headers = {
            "Content-Type": "application/json",
            KEY_HEADER: message.key,
            TIME_HEADER: timestamp,
            SIGNATURE_HEADER: sign(self.secret, timestamp, body),
        }
        try:
            answer = await post(self.url, body, headers, seconds_max=self.seconds_max)
        except RequestFailed as error:
            raise SinkFailed(str(error)) from None
        check_status(self.describe(), answer.status, answer.headers.get("retry-after", ""))

    def describe(self) -> str:
        """See `Sink`."""
        # Without the path: it may be a secret.
        return f"webhook at {urlsplit(self.url).netloc}"


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """Return the signature of a body that is sent at a time."""
    signed = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256)
    return f"v1={signed.hexdigest()}"


def check_status(where: str, status: int, retry_after: str) -> None:
    """Raise `SinkFailed` unless an answer says that the message was taken."""
    if 200 <= status < 300:
        return
    wait = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
    raise SinkFailed(
        f"{where} answered with status {status}",
        is_permanent=status in _REFUSALS,
        wait_seconds=min(wait, _WAIT_SECONDS_MAX),
    )


def build_body(message: Outgoing) -> bytes:
    """Return the body of a request. It has no time of sending, so each attempt has the same bytes."""
    return to_json(
        {
            "version": 1,
            "key": message.key,
            "events": [_build_event(item, message.base_url) for item in message.items],
        }
    )


def _build_event(item: Notification, base_url: str) -> dict[str, Any]:
    event = {
        "key": item.key,
        "event": item.event.value,
        "time_ms": item.ms,
        "text": describe(item),
        "thread_id": item.thread_id,
        "agent": item.agent,
        "about": item.about,
        "detail": item.text,
        "tool": item.tool,
        "by": item.by,
        "deadline_ms": item.deadline_ms,
        "approvers": item.approvers,
        "arguments": item.arguments,
        "link": build_link(base_url, item),
    }
    return {name: value for name, value in event.items() if value not in ("", None, ())}
