"""The demo of `everlong demo`. Its agents are `everlong.demo:agent` and `everlong.demo:runaway`."""

from everlong.demo.agent import agent, runaway

__all__ = ["agent", "runaway"]
