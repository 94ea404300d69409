"""What `everlong demo` runs and checks. Its agent is `everlong.demo:agent`."""

from everlong.demo.agent import agent

__all__ = ["agent"]
