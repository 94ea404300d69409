"""Worker of the loop workflows that kills itself at a chosen PUT.

Arguments: `address queue store when number`. `before` dies before the PUT: the object is
not stored. `after` dies once the object is stored but no caller knows its name.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from temporalio.client import Client
from temporalio.worker import Worker

from everlong import EverlongPlugin
from everlong.storage.file import FileBlobStore
from tests.support.loop_workflows import ACTIVITIES, WORKFLOWS


class DeadlyStore(FileBlobStore):
    def __init__(self, root: Path, when: str, number: int) -> None:
        super().__init__(root)
        self._when = when
        self._left = number

    async def put(self, key: str, data: bytes) -> None:
        self._left -= 1
        if self._left == 0 and self._when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        await super().put(key, data)
        if self._left == 0 and self._when == "after":
            os.kill(os.getpid(), signal.SIGKILL)


async def main(address: str, queue: str, root: str, when: str, number: str) -> None:
    store = DeadlyStore(Path(root), when, int(number))
    client = await Client.connect(address, plugins=[EverlongPlugin(store=store)])
    async with Worker(client, task_queue=queue, workflows=WORKFLOWS, activities=ACTIVITIES):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
