"""What an error of an object store means, in our words.

The server's own words are not repeated: they may quote a signed request with its session token.
"""

import dataclasses
import re
from typing import Final

from obstore.exceptions import UnauthenticatedError


@dataclasses.dataclass(frozen=True)
class Fault:
    """What happened, and what to do."""

    what: str
    remedy: str
    permanent: bool = False
    """It is in the store's URL, and does not heal."""


NO_ANSWER: Final = Fault(
    "it did not answer in time",
    "Check that it is up and not overloaded; this is tried again by itself.",
)
NO_BUCKET: Final = Fault(
    "there is no such bucket",
    "Create the bucket, or correct its name in the store's URL.",
    permanent=True,
)
_REGION: Final = Fault(
    "the bucket is in another region",
    "Add region=... to the store's URL, or set AWS_DEFAULT_REGION.",
    permanent=True,
)
_PLAIN_HTTP: Final = Fault(
    "its endpoint speaks plain http, which the store's URL does not say",
    "Write endpoint=http://... into the URL if nobody else can listen, or use https.",
    permanent=True,
)
_UNREACHABLE: Final = Fault(
    "nobody answers at its endpoint",
    "Check the endpoint in the store's URL, the name service and the network.",
)
_CERTIFICATE: Final = Fault(
    "the certificate of its endpoint is not trusted",
    "Name the authority's file in AWS_CA_BUNDLE, or correct the endpoint.",
)
_CLOCK: Final = Fault("it refuses requests because the clocks differ", "Set this machine's clock.")
_ARCHIVED: Final = Fault(
    "the object has been moved to an archive",
    "Restore it there, and take the prefix out of that lifecycle rule.",
)
_BROKEN: Final = Fault("the connection broke", "Check the network; this is tried again by itself.")

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w{1,64})</Code>")
_KIND: Final = re.compile(r"\bkind: (Connect|Timeout|Interrupted|Request|Decode),")
_NO_BUCKET: Final = {"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"}
_OTHER_REGION: Final = {"PermanentRedirect", "AuthorizationHeaderMalformed"}
_BAD_CREDENTIALS: Final = {
    "AuthenticationFailed",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}
# Answers of 400 that have nothing to do with a condition: a plain PUT may get them as well.
_BAD_BODY: Final = {"BadDigest", "EntityTooLarge", "IncompleteBody", "RequestTimeout"}
_BY_CODE: Final = {"RequestTimeTooSkewed": _CLOCK, "InvalidObjectState": _ARCHIVED}
_BY_KIND: Final = {"Connect": _UNREACHABLE, "Timeout": NO_ANSWER}


def status_of(error: BaseException) -> int:
    """Return the HTTP status that an error of obstore tells of, or 0."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0


def is_beyond_end(error: BaseException) -> bool:
    """Tell whether a range starts beyond the object's end: the server says so, or obstore does."""
    return status_of(error) == 416 or "StartTooLarge" in str(error)


def is_repeatable(error: BaseException) -> bool:
    """Tell whether obstore sends a plain PUT again after this: no answer, or one that may heal."""
    kind = _KIND.search(str(error))
    status = status_of(error)
    if status:
        return status in (408, 429) or status >= 500
    return kind is not None and kind[1] in ("Connect", "Interrupted", "Request")


def is_unknown_condition(error: BaseException) -> bool:
    """Tell whether a server may have refused a PUT only because it does not know its condition."""
    status = status_of(error)
    if status != 400:
        return status in (405, 501)
    found = _CODE.search(str(error))
    others = _BAD_BODY | _BAD_CREDENTIALS | _NO_BUCKET | _OTHER_REGION | _BY_CODE.keys()
    return found is None or found[1] not in others


def cause_of(error: BaseException) -> BaseException | None:
    """Return the error, to be chained, unless a refusal in it may quote the request."""
    refused = isinstance(error, UnauthenticatedError) or 400 <= status_of(error) < 500
    return None if refused else error


def fault_of(error: BaseException) -> Fault:
    """Return what an error of obstore means. What is not known may always heal."""
    if isinstance(error, TimeoutError):
        return NO_ANSWER
    text = str(error)
    status = status_of(error)
    found = _CODE.search(text)
    code = found[1] if found else ""
    if code in _NO_BUCKET or "specified bucket does not exist" in text:
        return NO_BUCKET
    if code in _OTHER_REGION or "incorrectly configured region" in text:
        return _REGION
    if "URL scheme is not allowed" in text:
        return _PLAIN_HTTP
    if code in _BY_CODE:
        return _BY_CODE[code]
    if status in (401, 403) or code in _BAD_CREDENTIALS or isinstance(error, UnauthenticatedError):
        return _refusal(status, code)
    if status:
        return Fault(
            f"it answered {f'{status} {code}'.strip()}",
            "Look into the server's own log; this is tried again by itself.",
        )
    if "InvalidCertificate" in text:
        return _CERTIFICATE
    kind = _KIND.search(text)
    return _BY_KIND.get(kind[1] if kind else "", _BROKEN)


def _refusal(status: int, code: str) -> Fault:
    named = f" ({code})" if code else ""
    if code in _BAD_CREDENTIALS or status == 401:
        return Fault(
            f"it does not accept the credentials{named}",
            "Check the key, its secret and that they have not expired.",
        )
    if status == 0:
        return Fault(
            "no credentials can be had",
            "Check where they come from: environment, profile, role or single sign-on.",
        )
    return Fault(
        f"it refuses access{named}",
        "Allow these credentials to list, read, write and delete under the prefix.",
    )
