"""The hub of the live channel: what listeners get, what is kept, and what is dropped."""

import asyncio
import dataclasses
import json
from typing import Any

import pytest

from everlong.admin.web.auth import Role
from everlong.live import hub as hub_module
from everlong.live.hub import LiveHub, TooManyListeners, format_event, stream_events
from everlong.live.models import PIECE_CHARS_MAX, TEXT_CHARS_MAX, LiveEvent, LivePost, LiveStep
from tests.support.admin_client import ROLES, bearer, make_context, open_http_client

NAMESPACE = "default"
REPLY = LiveStep(id="a" * 16, thread_id="t", kind="reply", attempt=1, order=1000, seq=4)
RETRY = dataclasses.replace(REPLY, id="b" * 16, attempt=2, order=2000)
CALL = LiveStep(
    id="c" * 16, thread_id="t", kind="tool", attempt=1, order=1, call_id="c1", tool="scan"
)


def post(hub: LiveHub, step: LiveStep, **fields: Any) -> tuple[dict[str, int], tuple[str, ...]]:
    answer = hub.take(LivePost(namespace=NAMESPACE, steps=(dataclasses.replace(step, **fields),)))
    return answer.chars, answer.ended


async def read(listener: hub_module.Listener) -> list[tuple[str, Any]]:
    """Return the queued events: each name, with its text, its reason or its attempt."""
    found = await listener.next(0)
    return [
        (each.name, each.data.get("text", each.data.get("reason", each.data.get("attempt"))))
        for each in found
    ]


async def test_nothing_is_kept_for_a_thread_without_listeners() -> None:
    hub = LiveHub()
    assert post(hub, REPLY, text="secret") == ({}, ())
    with hub.listen(NAMESPACE, "other", "ana"):
        assert post(hub, REPLY, text="secret") == ({}, ())
    assert hub.chars == 0


async def test_a_listener_gets_deltas_and_a_later_one_the_text_so_far() -> None:
    hub = LiveHub()
    with hub.listen(NAMESPACE, "t", "ana") as first:
        assert post(hub, REPLY) == ({REPLY.id: 0}, ())
        assert post(hub, REPLY, text="The log ") == ({REPLY.id: 8}, ())
        post(hub, REPLY, offset=8, text="is full.")
        with hub.listen(NAMESPACE, "t", "ben") as second:
            post(hub, REPLY, offset=16, state="done")
            assert await read(first) == [
                ("open", None),
                ("start", 1),
                ("delta", "The log "),
                ("delta", "is full."),
                ("done", 1),
            ]
            assert await read(second) == [
                ("open", None),
                ("start", 1),
                ("delta", "The log is full."),
                ("done", 1),
            ]
    assert hub.chars == 0


async def test_a_lost_post_is_repaired_by_the_next() -> None:
    hub = LiveHub()
    with hub.listen(NAMESPACE, "t", "ana") as listener:
        post(hub, REPLY, text="abc")
        # The post with "def" is lost; the answer says where to continue.
        assert post(hub, REPLY, offset=6, text="ghi") == ({REPLY.id: 3}, ())
        # A repeated part is not shown twice.
        assert post(hub, REPLY, offset=0, text="abcdefghi") == ({REPLY.id: 9}, ())
        assert await read(listener) == [
            ("open", None),
            ("start", 1),
            ("delta", "abc"),
            ("delta", "defghi"),
        ]


async def test_a_later_attempt_voids_what_was_shown_of_the_earlier_one() -> None:
    hub = LiveHub()
    with hub.listen(NAMESPACE, "t", "ana") as listener:
        post(hub, REPLY, text="half a re")
        post(hub, RETRY, text="A whole reply.")
        # The first worker was only cut off, and goes on: the answer ends its step.
        assert post(hub, REPLY, offset=9, text="ply") == ({}, (REPLY.id,))
        assert await read(listener) == [
            ("open", None),
            ("start", 1),
            ("delta", "half a re"),
            ("cut", "retried"),
            ("start", 2),
            ("delta", "A whole reply."),
        ]


async def test_an_attempt_of_the_next_try_counts_as_later_though_its_number_is_lower() -> None:
    hub = LiveHub()
    with hub.listen(NAMESPACE, "t", "ana") as listener:
        post(hub, RETRY, text="half")
        after_hold = dataclasses.replace(REPLY, id="d" * 16, order=3000)
        assert post(hub, after_hold, text="whole") == ({after_hold.id: 5}, ())
        assert ("cut", "retried") in await read(listener)


async def test_a_failed_attempt_is_cut() -> None:
    hub = LiveHub()
    with hub.listen(NAMESPACE, "t", "ana") as listener:
        post(hub, REPLY, text="half")
        post(hub, REPLY, offset=4, state="cut")
        assert (await read(listener))[-1] == ("cut", "failed")
    assert hub.chars == 0


async def test_a_silent_worker_s_reply_is_cut_and_shown_again_if_the_worker_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = LiveHub()
    with hub.listen(NAMESPACE, "t", "ana") as listener:
        post(hub, REPLY, text="half")
        hub.end_silent()
        assert (await read(listener))[-1] == ("delta", "half")
        monkeypatch.setattr(hub_module, "SILENT_SECONDS", -1.0)
        hub.end_silent()
        hub.end_silent()
        assert await read(listener) == [("cut", "silent")]
        assert post(hub, REPLY, offset=4, text=" a") == ({REPLY.id: 0}, ())
        post(hub, REPLY, text="half a")
        assert await read(listener) == [("start", 1), ("delta", "half a")]


async def test_the_newest_progress_of_each_tool_is_shown() -> None:
    hub = LiveHub()
    with hub.listen(NAMESPACE, "t", "ana") as listener:
        post(hub, CALL, text="34 of 200")
        post(hub, CALL, text="34 of 200")
        post(hub, CALL, text="35 of 200")
        other = dataclasses.replace(CALL, id="e" * 16, call_id="c2")
        post(hub, other)
        with hub.listen(NAMESPACE, "t", "ben") as late:
            assert await read(late) == [
                ("open", None),
                ("start", 1),
                ("progress", "35 of 200"),
                ("start", 1),
            ]
        post(hub, CALL, state="done")
        assert await read(listener) == [
            ("open", None),
            ("start", 1),
            ("progress", "34 of 200"),
            ("progress", "35 of 200"),
            ("start", 1),
            ("done", 1),
        ]


async def test_a_slow_listener_gets_an_event_that_it_is_dropped_and_others_go_on() -> None:
    hub = LiveHub()
    with (
        hub.listen(NAMESPACE, "t", "ana") as slow,
        hub.listen(NAMESPACE, "t", "ben") as quick,
    ):
        for number in range(hub_module.QUEUE_EVENTS_MAX + 1):
            post(hub, CALL, text=f"{number}")
            assert await read(quick)
        assert await read(slow) == [("dropped", "slow")]
        assert slow.is_closed
        assert not quick.is_closed


async def test_text_is_bounded_for_a_reply_and_for_all_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = LiveHub()
    with hub.listen(NAMESPACE, "t", "ana") as listener:
        piece = "x" * PIECE_CHARS_MAX
        for offset in range(0, TEXT_CHARS_MAX, PIECE_CHARS_MAX):
            post(hub, REPLY, offset=offset, text=piece)
            await read(listener)
        assert post(hub, REPLY, offset=TEXT_CHARS_MAX, text=piece) == (
            {REPLY.id: TEXT_CHARS_MAX},
            (),
        )
        monkeypatch.setattr(hub_module, "CHARS_MAX", TEXT_CHARS_MAX + 10)
        with hub.listen(NAMESPACE, "u", "ana") as other:
            second = dataclasses.replace(REPLY, id="f" * 16, thread_id="u")
            assert post(hub, second, text="0123456789") == ({second.id: 10}, ())
            assert post(hub, second, offset=10, text="x") == ({}, (second.id,))
            assert (await read(other))[-1] == ("cut", "full")
    assert hub.chars == 0


async def test_listeners_are_bounded_for_a_user_and_for_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub_module, "LISTENERS_PER_USER_MAX", 1)
    monkeypatch.setattr(hub_module, "LISTENERS_MAX", 2)
    hub = LiveHub()
    with hub.listen(NAMESPACE, "t", "ana"):
        with pytest.raises(TooManyListeners), hub.listen(NAMESPACE, "u", "ana"):
            pass
        with hub.listen(NAMESPACE, "t", "ben"):
            with pytest.raises(TooManyListeners), hub.listen(NAMESPACE, "t", "cy"):
                pass
    assert hub.listeners == 0


async def test_a_server_that_stops_ends_its_streams() -> None:
    hub = LiveHub()
    with hub.listen(NAMESPACE, "t", "ana") as listener:
        stream = stream_events(listener)
        assert (await anext(stream)).startswith(b"event: open\n")
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        hub.close()
        assert b'"reason":"stopping"' in await waiting
        assert [each async for each in stream] == []


def test_no_text_breaks_out_of_its_event() -> None:
    text = "one\n\nevent: done\r\ndata: {}\u2028\ud800"
    written = format_event(LiveEvent("delta", {"text": text})).decode()
    name, data, *rest = written.split("\n")
    assert (name, rest) == ("event: delta", ["", ""])
    assert "\r" not in data
    assert json.loads(data.removeprefix("data: "))["text"] == text.replace("\ud800", "?")


async def test_only_a_worker_posts_and_a_worker_reads_nothing() -> None:
    body = {"namespace": NAMESPACE, "steps": [{**dataclasses.asdict(REPLY), "text": "hi"}]}
    async with open_http_client(access=ROLES) as client:
        for role in Role:
            answer = await client.post("/api/v1/live", headers=bearer(role), json=body)
            assert answer.status_code == (200 if role in (Role.WORKER, Role.ADMIN) else 403)
        answer = await client.get("/api/v1/threads/t/live", headers=bearer(Role.WORKER))
        assert answer.status_code == 403


async def test_too_many_steps_are_refused_before_they_are_validated() -> None:
    body = {"namespace": NAMESPACE, "steps": [{}] * 100_000}
    async with open_http_client(access=ROLES) as client:
        answer = await client.post("/api/v1/live", headers=bearer(Role.WORKER), json=body)
    assert answer.status_code == 422
    assert "100000 steps; at most 256 are allowed" in answer.text
    assert len(answer.content) < 1_000


async def test_the_route_streams_events_of_one_namespace() -> None:
    class Connected:
        namespace = NAMESPACE

    context = make_context(Connected())  # type: ignore[arg-type] # the route reads the namespace only
    async with open_http_client(context) as client:
        with context.live.listen(NAMESPACE, "ops/7", "ana"):
            step = {**dataclasses.asdict(REPLY), "thread_id": "ops/7", "text": "hi"}
            other = {**step, "id": "f" * 16, "order": 9000, "text": "foreign"}
            for namespace, each in ((NAMESPACE, step), ("other", other)):
                posted = {"namespace": namespace, "steps": [each]}
                assert (await client.post("/api/v1/live", json=posted)).status_code == 200
            for path in ("/api/v1/threads/ops%2F7/live?", "/api/v1/threads/-/live?id=ops%2F7&"):
                answer = await client.get(f"{path}seconds=0")
                assert answer.headers["content-type"].startswith("text/event-stream")
                names = [line[7:] for line in answer.text.split("\n") if line.startswith("event: ")]
                assert names == ["open", "start", "delta"]
                assert "foreign" not in answer.text
        assert context.live.listeners == 0
