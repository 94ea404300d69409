"""What a user may set about a thread's size."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from everlong import limits


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Bounds of a thread. The defaults suit an agent that runs for months."""

    run_events_max: Annotated[int, Field(ge=50, le=40_000)] = 400
    """Continue as new from this many history events. A step of one model call and one tool is about
    12 events, so a run is about 33 steps, and a resume replays at most that."""

    run_history_bytes_max: Annotated[int, Field(ge=16 * limits.KIB, le=32 * limits.MIB)] = (
        limits.MIB
    )
    """Continue as new from this many bytes of history. The server warns at 10 MB and kills at 50."""

    turn_steps_max: Annotated[int, Field(ge=1)] = 500
    """Model calls that one message may cause. A turn that reaches it ends with a failure entry."""
