"""Test support for users: a scripted model, a synthetic workload, the contract of blob stores."""

from everlong.testing.scripted_model import ScriptedModel

__all__ = ["ScriptedModel"]
