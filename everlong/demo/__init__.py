"""What `everlong demo` runs and checks. Its agents are `everlong.demo:agent` and `:runaway`."""

from everlong.demo.agent import agent, runaway

__all__ = ["agent", "runaway"]
