"""The C allocator of a server: large blocks go back to the system as soon as they are freed.

glibc keeps freed blocks of up to 32 MiB for later, in up to 8 arenas for each processor. A server that
has once decoded large payloads in several OS threads would keep hundreds of MiB that way.
"""

import contextlib
import ctypes
import sys
from typing import Final

# From glibc's malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGE_BYTES: Final = 128 * 1024
_ARENAS: Final = 2


def return_large_blocks() -> bool:
    """Set the allocator up, and return whether that worked: it does with glibc, on Linux."""
    if not sys.platform.startswith("linux"):
        return False
    with contextlib.suppress(OSError, AttributeError):  # Another C library.
        mallopt = ctypes.CDLL(None).mallopt
        settings = {
            _M_MMAP_THRESHOLD: _LARGE_BYTES,  # Fixed: by default it grows with what is freed.
            _M_TRIM_THRESHOLD: _LARGE_BYTES,
            _M_ARENA_MAX: _ARENAS,
        }
        return all(mallopt(option, value) for option, value in settings.items())
    return False
