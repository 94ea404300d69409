"""Fakes that are meant to be used: a scripted model, and a workload of realistic size."""

from everlong.testing.scripted import ScriptedModel

__all__ = ["ScriptedModel"]
