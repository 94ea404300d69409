"""SIGKILL of the worker that delivers a notification: another worker delivers it, with the same key."""

from pathlib import Path

import pytest
from temporalio.client import Client

from everlong import EverlongPlugin
from everlong.client.thread import ThreadHandle
from everlong.embedded import TemporalServer
from tests.server.test_slack_clicks import worker
from tests.support.exporting_worker import READY
from tests.support.otlp_receiver import http_receiver
from tests.support.sink_receivers import Answer, run_http_receiver

CONFIG = """
[sinks.ops]
kind = "webhook"
url = "{url}"
secret_env = "SIGNING"
events = ["asked"]
seconds_max = 30
"""


@pytest.mark.full
@pytest.mark.guarantee(117)
async def test_a_notification_whose_worker_is_killed_comes_from_another_with_its_key(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    queue = f"queue-{thread_id}"
    plugin = EverlongPlugin(store=(tmp_path / "blobs").as_uri())
    client = await Client.connect(server.address, plugins=[plugin])

    def hang_first(number: int) -> Answer:
        return 200 if number else "hang"

    with http_receiver() as received:
        async with run_http_receiver(hang_first) as sink:
            (tmp_path / "notify.toml").write_text(CONFIG.format(url=sink.url))
            with worker(server.address, queue, tmp_path, received, "first") as first:
                await first.wait_for_output(READY, 60)
                await ThreadHandle(client, thread_id, task_queue=queue).send("deploy", agent="seen")
                await sink.wait_for(lambda: len(sink.received) == 1)
                first.kill()  # The request is sent, and no answer has come.
            with worker(server.address, queue, tmp_path, received, "second") as second:
                await second.wait_for_output(READY, 60)
                # The server notices the death after the heartbeat timeout of 15 s.
                await sink.wait_for(lambda: bool(sink.taken))
    lost, again = [each.json["events"][0]["key"] for each in sink.received]
    assert lost == again
    assert sink.taken == {again: 1}
