import re
from pathlib import Path

import pytest

from everlong.embedded import TemporalServer
from everlong.storage import BlobStore
from examples import own_thread, own_workflow, quickstart
from tests.support.threads import open_threads


async def test_a_list_passing_loop_keeps_its_history_small(
    server: TemporalServer, tmp_path: Path
) -> None:
    steps = 20
    history_bytes = await own_workflow.main(server.address, tmp_path.as_uri(), steps)
    # Without the plugin the inputs alone are 20 KB, 40 KB ... 400 KB: 4 MB. With it they are refs,
    # and so are the results.
    assert history_bytes < steps * 1_500


async def test_the_quickstart_answers(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, quickstart.ops) as threads, threads.worker():
        await threads.send(thread_id, "Why is it slow?")
        await threads.wait_for_answers(thread_id, 1)
        conversation = await threads.conversation(thread_id)
        assert conversation[-1].text == "The log ends with: api: out of memory"
        assert len(conversation[2].text) == 380_000, "the journal keeps all of the result"


@pytest.mark.guarantee(78)
async def test_a_team_workflow_can_embed_a_thread(server: TemporalServer, tmp_path: Path) -> None:
    ended = await own_thread.main(server.address, tmp_path.as_uri())
    nights, runs = re.fullmatch(r"(\d+) nights in (\d+) runs", ended).groups()  # type: ignore[union-attr]
    assert int(nights) == own_thread.NIGHTS
    assert int(runs) >= 2
