"""Agent whose replies take 6 s, word by word: long enough to kill its worker in between."""

from everlong import Agent, Reply
from everlong.testing import ScriptedModel

ANSWER = " ".join(f"word-{number}" for number in range(60))

writer = Agent(name="writer", model=ScriptedModel(lambda _: Reply(text=ANSWER), seconds=6))
