"""Comparing and checking long runs of bytes, at the speed of memcmp and of zlib."""

import zlib
from collections.abc import Callable, Sequence
from typing import Final

from everlong import limits

# Runs are compared in steps that double, from one that a mismatch at the start makes cheap.
_COMPARE_BYTES_MIN: Final = 256
_COMPARE_BYTES_MAX: Final = 256 * limits.KIB
# Where a checksum is noted, so that one of a longer payload can go on from there.
CRC_BYTES: Final = 256 * limits.KIB


def common_start(a: bytes, b: bytes, a_start: int, b_start: int, most: int) -> int:
    """Return how many bytes agree from two places on, up to a number."""

    def agree(done: int, step: int) -> bool:
        # Of the two, only one is copied.
        return a.startswith(b[b_start + done : b_start + done + step], a_start + done)

    return _agreeing(most, agree)


def common_end(a: bytes, b: bytes, most: int) -> int:
    """Return how many bytes agree before the two ends, up to a number."""

    def agree(done: int, step: int) -> bool:
        a_end, b_end = len(a) - done, len(b) - done
        return a.startswith(b[b_end - step : b_end], a_end - step)

    return _agreeing(most, agree)


def _agreeing(most: int, agree: Callable[[int, int], bool]) -> int:
    """Return how far two runs agree. `agree` is asked for a step beyond what is done."""
    done, step = 0, _COMPARE_BYTES_MIN
    while done < most:
        step = min(step, most - done)
        if agree(done, step):
            done += step
            step = min(2 * step, _COMPARE_BYTES_MAX)
        elif step == 1:
            break
        else:
            most = done + step
            step = max(1, step // 2)
    return done


def running_crcs(data: bytes, known: Sequence[int]) -> list[int]:
    """Return the CRC-32 of the data up to each multiple of a block, and of all of it at the end.

    Those that are known, of data that begins alike, are not computed again.
    """
    view = memoryview(data)
    crcs = list(known)
    for start in range(len(crcs) * CRC_BYTES, len(data), CRC_BYTES):
        crcs.append(zlib.crc32(view[start : start + CRC_BYTES], crcs[-1] if crcs else 0))
    return crcs
