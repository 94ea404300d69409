"""Test support: an environment with a server and workers, and models and approvers that follow a script.

`everlong.testing.pytest_plugin` has the fixtures. Names are imported on first use: an agent with a
`ScriptedModel` needs neither a server nor OpenTelemetry's SDK.
"""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from everlong.testing.driven_thread import DrivenThread, Step, ThreadSizes, ToolRecord
    from everlong.testing.environment import EverlongEnv, RunAgent
    from everlong.testing.fake_approver import AskedCall, FakeApprover
    from everlong.testing.recorded_model import RecordedModel
    from everlong.testing.recorded_spans import RecordedSpans
    from everlong.testing.scripted_model import ScriptedModel, call

__all__ = [
    "AskedCall",
    "DrivenThread",
    "EverlongEnv",
    "FakeApprover",
    "RecordedModel",
    "RecordedSpans",
    "RunAgent",
    "ScriptedModel",
    "Step",
    "ThreadSizes",
    "ToolRecord",
    "call",
]

_MODULES: Final = {
    "AskedCall": "fake_approver",
    "DrivenThread": "driven_thread",
    "EverlongEnv": "environment",
    "FakeApprover": "fake_approver",
    "RecordedModel": "recorded_model",
    "RecordedSpans": "recorded_spans",
    "RunAgent": "environment",
    "ScriptedModel": "scripted_model",
    "Step": "driven_thread",
    "ThreadSizes": "driven_thread",
    "ToolRecord": "driven_thread",
    "call": "scripted_model",
}

if not TYPE_CHECKING:  # Type checkers would accept any name.

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # `__import__`, as in `everlong`: importlib would import a second copy in a workflow.
        value = getattr(__import__(f"{__name__}.{_MODULES[name]}", fromlist=[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
