"""E-mail sink: SMTP with STARTTLS or TLS, by the standard library.

The library is blocking, so mails are sent in OS threads of their own: a server that hangs takes none of
those that other work needs.
"""

import asyncio
import dataclasses
import functools
import smtplib
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from email.utils import formatdate, parseaddr
from typing import ClassVar, Final, Literal

from everlong import limits
from everlong.notify.sinks import Outgoing, Sink, SinkFailed, build_link, check_names
from everlong.notify.texts import ITEMS_SHOWN_MAX, describe, describe_all, describe_arguments
from everlong.notify.webhook import KEY_HEADER

_PORTS: Final = {"starttls": 587, "tls": 465, "none": 25}
_RECIPIENTS_MAX: Final = 50
_SUBJECT_CHARS_MAX: Final = 150
# A session has about ten commands, each with a timeout of its own.
_COMMANDS_MAX: Final = 3


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(limits.NOTIFY_REQUESTS_MAX, thread_name_prefix="everlong-mail")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Email(Sink):
    """Sends mails.

    Args:
        host: The SMTP server.
        sender: Address that the mails are from.
        to: Addresses of the recipients.
        tls: `starttls`, `tls` from the first byte on, or `none` for a server on this machine.
        port: 587, 465 or 25 by default, as `tls` says.
        username: For a server that needs a login. It is sent over TLS only.
        password: For that login.

    """

    kind: ClassVar[str] = "email"

    host: str
    sender: str
    to: Sequence[str]
    tls: Literal["starttls", "tls", "none"] = "starttls"
    port: int = 0
    username: str = ""
    password: str = dataclasses.field(default="", repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self.name, "to", self.to)
        if not self.host or self.tls not in _PORTS or not 0 <= self.port < 65_536:
            raise self.make_error("it needs a host, and tls is starttls, tls or none")
        if not 0 < len(self.to) <= _RECIPIENTS_MAX:
            raise self.make_error(f"it has {len(self.to)} recipients; give 1 to {_RECIPIENTS_MAX}")
        for address in (self.sender, *self.to):
            if "@" not in parseaddr(address)[1] or not address.isprintable():
                raise self.make_error("an address is not valid; write it as in ops@example.com")
        if self.tls == "none" and self.host not in ("localhost", "127.0.0.1", "::1"):
            raise self.make_error("tls is none, which is for a server on this machine alone")
        if self.username and self.tls == "none":
            raise self.make_error("a login needs tls: the password would be readable on the way")

    async def send(self, message: Outgoing) -> None:
        """See `Sink`."""
        mail = self.build_mail(message)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_COMMANDS_MAX * self.seconds_max):
                await loop.run_in_executor(_threads(), self._send, mail)
        except TimeoutError:
            raise SinkFailed(
                f"{self.describe()} did not finish within {_COMMANDS_MAX * self.seconds_max:g} s"
            ) from None
        except smtplib.SMTPResponseException as error:
            # Its text may quote addresses, so only the code is reported.
            raise SinkFailed(f"{self.describe()} answered with code {error.smtp_code}") from None
        except smtplib.SMTPRecipientsRefused as error:
            codes = {code for code, _ in error.recipients.values()}
            raise SinkFailed(
                f"{self.describe()} refuses all recipients, with code {min(codes)}"
            ) from None
        except (smtplib.SMTPException, OSError) as error:
            raise SinkFailed(f"{self.describe()} failed: {type(error).__name__}") from None

    def _send(self, mail: EmailMessage) -> None:
        port = self.port or _PORTS[self.tls]
        if self.tls == "tls":
            context = ssl.create_default_context()
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                self.host, port, timeout=self.seconds_max, context=context
            )
        else:
            server = smtplib.SMTP(self.host, port, timeout=self.seconds_max)
        with server:
            if self.tls == "starttls":
                server.starttls(context=ssl.create_default_context())
            if self.username:
                server.login(self.username, self.password)
            server.send_message(mail)

    def build_mail(self, message: Outgoing) -> EmailMessage:
        """Return a message as a mail. Its id is derived from the key, so duplicates carry one id."""
        mail = EmailMessage()
        mail["From"] = self.sender
        mail["To"] = ", ".join(self.to)
        # The policy of `EmailMessage` refuses line breaks in headers.
        mail["Subject"] = f"[Everlong] {describe_all(message.items)}"[:_SUBJECT_CHARS_MAX]
        mail["Date"] = formatdate(message.items[0].ms / 1000)
        mail["Message-ID"] = f"<{message.key}@everlong>"
        mail[KEY_HEADER] = message.key
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(_build_text(message))
        return mail

    def describe(self) -> str:
        """See `Sink`."""
        return f"mail server at {self.host}:{self.port or _PORTS[self.tls]}"


def _build_text(message: Outgoing) -> str:
    parts = []
    for item in message.items[:ITEMS_SHOWN_MAX]:
        lines = [describe(item)]
        if item.arguments:
            lines.append(f"Arguments: {describe_arguments(item)}")
        if link := build_link(message.base_url, item):
            lines.append(link)
        parts.append("\n".join(lines))
    if len(message.items) > ITEMS_SHOWN_MAX:
        parts.append(f"and {len(message.items) - ITEMS_SHOWN_MAX} more")
    return "\n\n".join(parts) + "\n"
