"""Billed actions of a thread, by a short run of the benchmark."""

import asyncio
from pathlib import Path

from bench.cost import ACTIONS_MAX, measure_cost
from everlong.embedded import start_server
from everlong.embedded.server import find_free_port


def test_twenty_fast_steps_send_no_heartbeat_and_cost_at_most_fifty_actions(tmp_path: Path) -> None:
    async def measure() -> None:
        metrics_port = find_free_port()
        server = await start_server(tmp_path, metrics_port=metrics_port, durable=False)
        with server.process:
            report = await measure_cost(server.address, metrics_port, tmp_path, quick=True)
        assert report.failed == []
        values = {figure.what: figure.value for figure in report.figures}
        assert 43 <= (values["actions of 20 fast steps"] or 0) <= ACTIONS_MAX
        assert values["... of which heartbeats"] == 0
        totals, kinds = report.series
        by_kind = {row[0]: row[1:] for row in kinds.rows}
        assert by_kind["activities"] == (41, 41)
        assert by_kind["starts and rolls"] == (1, 1)
        # The plain loop: a start and 41 activities.
        assert totals.rows[-1][3] == 42
        [approval] = [row for row in totals.rows if str(row[0]).startswith("an approval")]
        # The query for pending approvals, the decision, and the updates of search attributes. Without
        # approvals, a first turn updates only the search attribute of the thread's size. On a busy
        # machine the decision may come before they are published, which saves two updates.
        assert approval[1] in (3, 4, 5)

    asyncio.run(measure())
