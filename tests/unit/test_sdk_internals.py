"""A private API of the SDK that is missing costs its feature and one warning, nothing else."""

import ast
import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

import everlong
from everlong import EverlongPlugin
from everlong.interceptors import sdk_internals
from everlong.interceptors.activation import _HookedInstance, install_hooks, pass_package_through
from everlong.interceptors.sdk_internals import HookedRunner
from tests.support.missing_sdk_apis import REMOVALS, list_warnings

ROOT = Path(everlong.__file__).parent


@pytest.fixture
def none_off(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """For a test that switches a feature off itself."""
    monkeypatch.setattr(sdk_internals, "_off", set())
    return monkeypatch


def test_the_installed_sdk_has_every_private_api_in_use(caplog: pytest.LogCaptureFixture) -> None:
    EverlongPlugin(store="memory:")
    assert sdk_internals._off == set()
    assert list_warnings(caplog) == []


@pytest.mark.parametrize("missing", REMOVALS)
def test_a_missing_api_costs_its_own_feature_and_one_warning(
    missing: str, none_off: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    feature, remove = REMOVALS[missing]
    remove(none_off)
    for _ in range(2):
        EverlongPlugin(store="memory:")
    assert sdk_internals._off == {feature}
    [warning] = list_warnings(caplog)
    for part in (feature.name, feature.api, feature.loss):
        assert part in warning
    none_off.setattr(sdk_internals, "_off", set())


@pytest.mark.usefixtures("none_off")
def test_a_worker_without_a_bridge_loses_eviction_only(caplog: pytest.LogCaptureFixture) -> None:
    worker = cast("Any", SimpleNamespace())
    for _ in range(2):
        sdk_internals.probe_worker(worker)
        sdk_internals.evict(worker, "a run")
    assert sdk_internals._off == {sdk_internals.EVICTION}
    [warning] = list_warnings(caplog)
    assert "_bridge_worker" in warning
    sdk_internals._off.clear()


def test_an_ended_worker_keeps_the_feature_on() -> None:
    def request(run_id: str) -> None:
        raise AttributeError("'NoneType' object has no attribute 'request_workflow_eviction'")

    bridge = SimpleNamespace(request_workflow_eviction=request)
    sdk_internals.evict(cast("Any", SimpleNamespace(_bridge_worker=bridge)), "a run")
    sdk_internals.evict(cast("Any", SimpleNamespace(_bridge_worker=None)), "a run")
    assert sdk_internals.is_on(sdk_internals.EVICTION)


def test_an_api_that_fails_in_use_costs_its_feature_and_one_warning(
    none_off: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sdk_internals.probe()
    REMOVALS["_Runtime"][1](none_off)
    assert [sdk_internals.next_activity_id() for _ in range(3)] == ["", "", ""]
    assert len(list_warnings(caplog)) == 1
    sdk_internals._off.clear()


def test_runners_stay_unchanged_without_hooks(none_off: pytest.MonkeyPatch) -> None:
    none_off.setattr(sdk_internals, "_off", {sdk_internals.HOOKS, sdk_internals.PASSTHROUGH})
    for runner in (SandboxedWorkflowRunner(), UnsandboxedWorkflowRunner()):
        assert install_hooks(pass_package_through(runner), None) is runner
    sdk_internals._off.clear()


def test_a_rebuilt_runner_keeps_its_fields() -> None:
    runner = SandboxedWorkflowRunner(runner_class=type("Own", (UnsandboxedWorkflowRunner,), {}))
    rebuilt = install_hooks(pass_package_through(runner), None)
    assert isinstance(rebuilt, SandboxedWorkflowRunner)
    assert isinstance(rebuilt, HookedRunner)
    assert rebuilt.runner_class is runner.runner_class
    assert "everlong" in rebuilt.restrictions.passthrough_modules
    assert install_hooks(rebuilt, None) is rebuilt


def test_a_method_that_the_sdk_adds_to_its_instances_reaches_the_instance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def added(self: object, number: int) -> int:
        raise NotImplementedError

    monkeypatch.setattr(WorkflowInstance, "get_more", added, raising=False)

    @sdk_internals.delegate_rest
    class Wrapper(_HookedInstance):
        def __init__(self) -> None:
            self._instance = cast("Any", SimpleNamespace(get_more=lambda number: number + 1))

    assert cast("Any", Wrapper()).get_more(41) == 42


def private_uses(source: str, own: set[str]) -> list[str]:
    """Private names of the SDK in a module: imports, attributes, and names in strings."""
    return [
        f"{getattr(node, 'lineno', 0)}: {name}"
        for node in ast.walk(ast.parse(source))
        for name in private_names(node)
        if name not in own
    ]


def private_names(node: ast.AST) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names if is_sdk_private(alias.name)]
        case ast.ImportFrom():
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            return [name for name in names if is_sdk_private(name)]
        case ast.Attribute() if is_private(node.attr):
            return [node.attr]
        case ast.Constant(value=str(text)) if is_sdk_private(text):
            return [text]
        case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)):
            if called in {"getattr", "hasattr", "setattr", "__setattr__", "delattr"}:
                words = [str(each.value) for each in node.args if isinstance(each, ast.Constant)]
                return [word for word in words if is_private(word)]
    return []


def is_sdk_private(dotted: str) -> bool:
    parts = dotted.split(".")
    return parts[0] == "temporalio" and ("bridge" in parts or any(map(is_private, parts)))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@functools.cache
def own_names() -> set[str]:
    """Private names that Everlong defines itself, and those of the standard library that it uses."""
    own = {"_replace", "_exit"}
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                own.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
    return own


def test_only_one_module_uses_private_sdk_apis() -> None:
    own = own_names()
    violations = {
        path.relative_to(ROOT).as_posix(): uses
        for path in sorted(ROOT.rglob("*.py"))
        if (uses := private_uses(path.read_text(), own))
    }
    assert list(violations) == ["interceptors/sdk_internals.py"], violations


@pytest.mark.parametrize(
    "source",
    [
        "from temporalio.bridge.proto.workflow_activation import WorkflowActivation",
        "import temporalio.worker._worker",
        "from temporalio.workflow import _Runtime",
        "worker._bridge_worker.replace_client(None)",
        "getattr(runtime, '_curr_seqs', None)",
        "importlib.import_module('temporalio.bridge.worker')",
    ],
)
def test_the_rule_detects_every_access_to_a_private_name(source: str) -> None:
    assert len(private_uses(source, own_names())) >= 1
