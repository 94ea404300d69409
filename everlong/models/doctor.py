"""What `everlong doctor` asks of workers, and what they answer.

None of it is sealed or offloaded: it has to get through where keys or stores do not agree. So it
holds names, versions and digests of random bytes; no content, no keys.
"""

from typing import Annotated, Final

from pydantic import Field
from pydantic.dataclasses import dataclass

CHECKS_MAX: Final = 16
"""Activities of one check-up."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """Argument of the `everlong.check` activity."""

    probe_key: str
    """Where in the store the asker has put some random bytes."""
    payload: str
    """Other random bytes, as the asker's data converter encodes them: a payload in base64."""


@dataclass(frozen=True, kw_only=True)
class Checkup:
    """Argument of the `everlong.Doctor` workflow."""

    check: Check
    times: Annotated[int, Field(ge=0, le=CHECKS_MAX)]
    """So many activities at once: workers share them."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a worker made of some bytes."""

    digest: str = ""
    """SHA-256, in hex."""
    error: str = ""
    """Why it could not."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Result of `everlong.check`: what the worker is, and what it could read and write."""

    time_ms: int
    """The worker's clock when it began."""
    everlong: str
    sdk: str
    sdk_tested: bool
    python: str
    agents: tuple[str, ...]
    store: str
    """Its URL, without credentials."""
    inline_bytes_max: int
    key_ids: tuple[str, ...]
    """The first one writes."""
    attributes: bool
    """Whether the server had our search attributes when the worker looked."""
    probe: Seen
    payload: Seen
    answer: Seen
    """Random bytes of the worker's own."""
    answer_payload: str = ""
    """Them, as the worker's data converter encodes them: a payload in base64."""
    codec_warning: str = ""
    """Warning about a codec inside Everlong's; empty if there is none."""
