"""Patches that remove one of the SDK's private APIs that Everlong uses."""

import dataclasses
import importlib
import logging
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, Final, TypeAlias

import pytest
from temporalio import workflow
from temporalio.bridge.worker import Worker as BridgeWorker
from temporalio.worker import _workflow_instance
from temporalio.worker.workflow_sandbox import SandboxRestrictions

from everlong.interceptors import sdk_internals
from everlong.interceptors.sdk_internals import Feature

Remove: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def list_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings about features that were switched off."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == sdk_internals.__name__ and record.levelno >= logging.WARNING
    ]


def _remove_runtime(patch: pytest.MonkeyPatch) -> None:
    names = {name: value for name, value in vars(workflow).items() if name != "_Runtime"}
    patch.setattr(sdk_internals, "workflow", SimpleNamespace(**names))


def _remove_seqs(patch: pytest.MonkeyPatch) -> None:
    """Rename the counters of workflow instances."""

    def get(self: object) -> dict[str, int]:
        raise AttributeError("no _curr_seqs")

    def next_seq(self: object, kind: str) -> int:
        seqs = vars(self).setdefault("_other_seqs", {})
        seqs[kind] = seqs.get(kind, 0) + 1
        return int(seqs[kind])

    instance = _workflow_instance._WorkflowInstanceImpl
    patch.setattr(instance, "_curr_seqs", property(get, lambda self, value: None), raising=False)
    patch.setattr(instance, "_next_seq", next_seq)


def _shift_seqs(patch: pytest.MonkeyPatch) -> None:
    """Shift the counters by one from the ids of activities."""

    def next_seq(self: Any, kind: str) -> int:
        self._curr_seqs[kind] = self._curr_seqs.get(kind, 1) + 1
        return int(self._curr_seqs[kind]) - 1

    patch.setattr(_workflow_instance._WorkflowInstanceImpl, "_next_seq", next_seq)


def _remove_module(name: str) -> Remove:
    """Hide a module from Everlong's imports; the SDK itself keeps it."""

    def import_module(wanted: str) -> ModuleType:
        if wanted == name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return importlib.import_module(wanted)

    shim = SimpleNamespace(import_module=import_module)
    return lambda patch: patch.setattr(sdk_internals, "importlib", shim)


def _remove_eviction(patch: pytest.MonkeyPatch) -> None:
    patch.delattr(BridgeWorker, "request_workflow_eviction")


def _thaw_runner(patch: pytest.MonkeyPatch) -> None:
    """Make the sandboxed runner a dataclass that is not frozen, which a frozen one cannot extend."""

    @dataclasses.dataclass
    class Thawed:
        restrictions: SandboxRestrictions = SandboxRestrictions.default

    patch.setattr(sdk_internals, "SandboxedWorkflowRunner", Thawed)


def _reshape_details(patch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass
    class Details:
        interceptor_classes: list[type]

    patch.setattr(sdk_internals, "WorkflowInstanceDetails", Details)


def _remove_passthrough(patch: pytest.MonkeyPatch) -> None:
    patch.delattr(SandboxRestrictions, "with_passthrough_modules")


REMOVALS: Final[dict[str, tuple[Feature, Remove]]] = {
    "_Runtime": (sdk_internals.ACTIVITY_IDS, _remove_runtime),
    "_curr_seqs": (sdk_internals.ACTIVITY_IDS, _remove_seqs),
    "shifted _curr_seqs": (sdk_internals.ACTIVITY_IDS, _shift_seqs),
    "request_workflow_eviction": (sdk_internals.EVICTION, _remove_eviction),
    "bridge.worker": (sdk_internals.EVICTION, _remove_module("temporalio.bridge.worker")),
    "bridge.proto": (
        sdk_internals.HOOKS,
        _remove_module("temporalio.bridge.proto.workflow_activation"),
    ),
    "frozen runner": (sdk_internals.HOOKS, _thaw_runner),
    "extern_functions": (sdk_internals.HOOKS, _reshape_details),
    "with_passthrough_modules": (sdk_internals.PASSTHROUGH, _remove_passthrough),
    "nexus._operation_context": (
        sdk_internals.NEXUS_STARTS,
        _remove_module("temporalio.nexus._operation_context"),
    ),
}
