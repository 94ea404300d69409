"""Where metrics are shown, for those who only have to say so."""

import dataclasses
from typing import Final

LOOPBACK: Final = "127.0.0.1"
PORT_DEFAULT: Final = 9464


@dataclasses.dataclass(frozen=True)
class Listen:
    """Where to listen, and whom to let in."""

    host: str = LOOPBACK
    port: int = PORT_DEFAULT
    """0 takes any free port."""
    token: str = dataclasses.field(default="", repr=False)
    """What a request has to bear; everybody is let in without one."""
