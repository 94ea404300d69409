"""The `everlong.check` activity: reports a worker's versions, and whether it reads the doctor's bytes.

A problem with the worker's keys or store does not fail it: the problem is part of its answer.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from typing import Final

from temporalio import activity

from everlong import limits
from everlong.doctor import probes
from everlong.errors import EverlongError, InvalidKey
from everlong.models import CHECK, Check, CheckResult, ProbeResult, make_printable
from everlong.storage.pack_store import PackStore
from everlong.versions import get_versions

_STORE_CHARS_MAX: Final = 300
_WARNING_CHARS_MAX: Final = 400
# Agents that an answer names. A worker with more of them is rare.
_AGENTS_MAX: Final = 50


class CheckActivities:
    """The check-up activity of one worker."""

    def __init__(
        self,
        packs: PackStore,
        agents: Sequence[str],
        *,
        inline_bytes_max: int,
        has_attributes: Callable[[], bool],
        codec_warning: Callable[[], str] = lambda: "",
    ) -> None:
        self._packs = packs
        self._agents = tuple(agents[:_AGENTS_MAX])
        self._inline_bytes_max = inline_bytes_max
        self._has_attributes = has_attributes
        self._codec_warning = codec_warning

    @activity.defn(name=CHECK)
    async def check(self, check: Check) -> CheckResult:
        """Read the doctor's probe and payload, encode a payload for the doctor, and report."""
        time_ms = time.time_ns() // 1_000_000
        info = activity.info()
        converter = probes.bind_converter(
            activity.client().data_converter, info.namespace, info.workflow_id or ""
        )
        probe, payload = await asyncio.gather(
            probes.try_read(lambda: self._read(check.probe_key)),
            probes.try_read(lambda: probes.decode(converter, check.payload)),
        )
        answer, answer_payload = ProbeResult(), ""
        if not probe.error:  # In another store, the doctor would neither find nor delete it.
            data = os.urandom(self._inline_bytes_max + limits.KIB)

            async def write() -> bytes:
                nonlocal answer_payload
                answer_payload = await probes.encode(converter, data)
                return data

            answer = await probes.try_read(write)
        running = get_versions()
        return CheckResult(
            time_ms=time_ms,
            everlong=running.everlong,
            sdk=running.sdk,
            sdk_tested=running.sdk_tested,
            python=running.python,
            agents=self._agents,
            store=make_printable(repr(self._packs.store), _STORE_CHARS_MAX),
            inline_bytes_max=self._inline_bytes_max,
            key_ids=await self._list_key_ids(),
            attributes=self._has_attributes(),
            probe=probe,
            payload=payload,
            answer=answer,
            answer_payload=answer_payload,
            codec_warning=make_printable(self._codec_warning(), _WARNING_CHARS_MAX),
        )

    async def _read(self, key: str) -> bytes:
        if not key.startswith(probes.PREFIX):
            raise InvalidKey("the check-up reads only objects that the doctor wrote as probes")
        return await self._packs.store.get(key)

    async def _list_key_ids(self) -> tuple[str, ...]:
        try:
            keys = await self._packs.keys()
        except EverlongError:  # The key service is down, which the errors above report.
            return ()
        return () if keys is None else keys.ids
