"""A team's codec inside Everlong's and around it: what it costs, what is refused, what still works."""

import asyncio
import base64
import dataclasses
import json
import os
import zlib
from collections.abc import Sequence

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import (
    DataConverter,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)
from temporalio.plugin import SimplePlugin
from temporalio.worker import Worker
from typer.testing import CliRunner

from everlong import EverlongPlugin, cli
from everlong.client.packs import find_packs
from everlong.codecs import EverlongCodec, composition
from everlong.codecs.composition import (
    OuterCodec,
    find_everlong_codec,
    holds_everlong,
    inspect_codec,
)
from everlong.codecs.refs import is_ref
from everlong.config import load_settings
from everlong.connection import connect, load_codec
from everlong.errors import ConfigError
from everlong.models import CHECK, SweepOptions, SweepReport
from everlong.storage.encryption_keys import Keyring
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore
from everlong.sweep import Sweep
from everlong.testing import workload
from tests.support.fake_namespace import AT_ONCE, NAMESPACE, FakeNamespace
from tests.support.sample_payloads import KEY_1, activity, payload
from tests.support.sample_payloads import workflow as workflow_context
from tests.support.team_codecs import ENCRYPTED, Chain, Cipher, CodecPlugin, Marking, Xor

KEYS = {"first": KEY_1}
STEPS = 12


class CompressingCodec(Marking):
    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(metadata={"encoding": b"z"}, data=zlib.compress(each.data)) for each in payloads
        ]


class FailingCodec(Marking):
    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        raise OSError("no key service")


class HangingCodec(Marking):
    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        await asyncio.sleep(60)
        return list(payloads)


class CounterCodec(Marking):
    """Puts large payloads elsewhere, under a new name each time."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(metadata={"encoding": b"claim"}, data=os.urandom(16)) if each.data else each
            for each in payloads
        ]


class NeedsContext(Cipher, WithSerializationContext):
    """Encrypts with a key of the namespace: without a context it does not know which."""

    namespace = ""

    def with_context(self, context: SerializationContext) -> "NeedsContext":
        copied = type(self)()
        copied.namespace = getattr(context, "namespace", "")
        return copied

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        if not self.namespace:
            raise ValueError("no namespace")
        return await super().encode(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        if not self.namespace:
            raise ValueError("no namespace")
        return await super().decode(payloads)


@workflow.defn
class Nothing:
    @workflow.run
    async def run(self) -> None:
        pass


async def lazy_client(*plugins: SimplePlugin, codec: PayloadCodec | None = None) -> Client:
    """Return a client that has not connected."""
    return await Client.connect(
        "127.0.0.1:1",
        plugins=list(plugins),
        lazy=True,
        data_converter=DataConverter(payload_codec=codec),
    )


async def stored_bytes(inner: PayloadCodec | None, keys: dict[str, bytes] | None = None) -> int:
    """Return what a loop of 12 steps stores that sends its whole list at each step."""
    store = MemoryBlobStore()
    codec = EverlongCodec(store, inner=inner, keys=keys).with_context(workflow_context())
    messages: list[str] = []
    for step in range(STEPS):
        messages.append(workload.result(step))
        await codec.encode([payload(json.dumps(messages).encode())])
    return sum([info.size_bytes async for info in store.list("")])


async def test_a_codec_that_encrypts_first_stores_each_list_whole() -> None:
    alone = await stored_bytes(None)
    assert await stored_bytes(Cipher()) > 8 * alone
    assert await stored_bytes(Marking()) < 1.2 * alone
    # The remedy: Everlong's own keys.
    assert await stored_bytes(None, KEYS) < 1.2 * alone


@pytest.mark.parametrize(
    ("codec", "repeats"),
    [
        (Cipher(), False),
        (NeedsContext(), False),
        (CompressingCodec(), False),
        (Marking(), True),
        (FailingCodec(), None),
        (CounterCodec(), None),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_inspection_finds_codecs_whose_output_does_not_repeat(
    codec: PayloadCodec, repeats: bool | None
) -> None:
    found = await inspect_codec(codec, "default")
    assert found.repeats is repeats
    assert bool(found.warning) == (repeats is False)
    assert type(codec).__name__ in found.warning or not found.warning


async def test_a_codec_that_hangs_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composition, "INSPECTION_SECONDS_MAX", 0.05)
    async with asyncio.timeout(30):
        assert (await inspect_codec(HangingCodec(), "default")).repeats is None


@pytest.mark.guarantee(24)
@pytest.mark.parametrize("keys", [None, KEYS], ids=["no keys", "keys"])
async def test_a_worker_whose_codec_is_wrapped_is_refused(keys: dict[str, bytes] | None) -> None:
    client = await lazy_client(EverlongPlugin(store="memory:", keys=keys), CodecPlugin(Cipher()))
    with pytest.raises(ConfigError, match=r"Chain is around Everlong's.*outer_codec=Chain"):
        Worker(client, task_queue="q", workflows=[Nothing])
    with pytest.raises(ConfigError, match="around Everlong's"):
        find_packs(client)


@pytest.mark.guarantee(24)
async def test_a_worker_whose_codec_was_replaced_is_refused() -> None:
    replacing = CodecPlugin(Cipher(), replaces=True)
    client = await lazy_client(EverlongPlugin(store="memory:"), replacing)
    with pytest.raises(ConfigError, match=r"codec is Cipher, and Everlong's codec is not found"):
        Worker(client, task_queue="q", workflows=[Nothing])


async def test_a_worker_whose_converter_was_replaced_is_refused() -> None:
    plain = SimplePlugin("test.Converter", data_converter=DataConverter())
    client = await lazy_client(EverlongPlugin(store="memory:"), plain)
    with pytest.raises(ConfigError, match="has no payload codec"):
        Worker(client, task_queue="q", workflows=[Nothing])


async def test_a_codec_that_comes_first_stays_inside() -> None:
    plugin = EverlongPlugin(store="memory:")
    client = await lazy_client(CodecPlugin(Cipher()), plugin)
    plugin.check_client(client)
    codec = find_everlong_codec(client.data_converter.payload_codec)
    assert codec is not None
    assert isinstance(codec.inner, Cipher)


async def test_a_codec_with_everlongs_inside_is_not_wrapped_again() -> None:
    plugin = EverlongPlugin(store="memory:")
    with pytest.raises(ConfigError, match="around Everlong's"):
        await lazy_client(plugin, codec=Chain(plugin.codec, Cipher()))


def test_the_search_for_everlongs_codec_is_bounded() -> None:
    codec = EverlongCodec(MemoryBlobStore())

    class Slotted:
        __slots__ = ("codec",)

        def __init__(self) -> None:
            self.codec = codec

    assert holds_everlong(Chain(Chain(codec)))
    assert holds_everlong(Slotted())
    assert holds_everlong({"codecs": (codec,)})
    assert not holds_everlong(Chain(Cipher(), Marking()))
    circle: list[object] = []
    circle.append(circle)
    assert not holds_everlong(circle)
    assert not holds_everlong([object() for _ in range(1000)])


@pytest.mark.guarantee(24)
def test_an_outer_codec_without_keys_is_refused() -> None:
    with pytest.raises(ConfigError, match="outer_codec=Cipher needs keys"):
        EverlongPlugin(store="memory:", outer_codec=Cipher())
    with pytest.raises(ConfigError, match="holds Everlong's codec already"):
        EverlongPlugin(
            store="memory:", keys=KEYS, outer_codec=Chain(EverlongCodec(MemoryBlobStore()))
        )


async def test_the_command_loads_the_outer_codec_that_its_environment_names() -> None:
    env = {
        "EVERLONG_STORE": "memory:",
        "EVERLONG_KEYS": f"first:{base64.b64encode(KEY_1).decode()}",
        "TEMPORAL_ADDRESS": "127.0.0.1:1",
        "TEMPORAL_CONFIG_FILE": os.devnull,
    }

    async def connected(name: str) -> Client:
        settings = load_settings({**env, "EVERLONG_OUTER_CODEC": name})
        settings.temporal["lazy"] = True  # type: ignore[typeddict-unknown-key] # of Client.connect
        return await connect(settings)

    codec = (await connected("tests.support.team_codecs:Cipher")).data_converter.payload_codec
    assert isinstance(codec, OuterCodec)
    assert isinstance(codec.outer, Cipher)
    assert (await connected("")).data_converter.payload_codec is not None
    for wrong in (
        "tests.support.team_codecs:Missing",
        "tests.support.team_codecs:ENCRYPTED",
        "tests.absent:Cipher",
        "x",
    ):
        with pytest.raises(ConfigError, match="EVERLONG_OUTER_CODEC"):
            await connected(wrong)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("tests.absent:make", "there is no module 'tests.absent'"),
        ("tests.support.team_codecs", "it has no module or no name"),
        (":make_xor", "it has no module or no name"),
        (
            "tests.support.team_codecs:absent",
            "the module 'tests.support.team_codecs' has no 'absent'",
        ),
        ("tests.support.team_codecs:ENCRYPTED", "'ENCRYPTED' is a bytes and not callable"),
        (
            "tests.support.team_codecs:make_nothing",
            "'make_nothing' returned a NoneType, not a PayloadCodec",
        ),
        (
            "tests.support.team_codecs:make_trouble",
            "calling 'make_trouble' without arguments failed (OSError)",
        ),
    ],
)
def test_a_codec_that_cannot_be_loaded_is_explained(path: str, why: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_codec(path, "--codec")
    assert str(raised.value).startswith(f"--codec is {path!r}, which cannot be loaded: {why}")
    assert "secret" not in str(raised.value)
    refused = CliRunner().invoke(cli.app, ["serve", "--codec", path])
    assert isinstance(refused.exception, ConfigError)


async def test_the_command_puts_the_codec_of_its_environment_inside() -> None:
    env = {
        "EVERLONG_STORE": "memory:",
        "EVERLONG_CODEC": "tests.support.team_codecs:make_xor",
        "TEMPORAL_ADDRESS": "127.0.0.1:1",
        "TEMPORAL_CONFIG_FILE": os.devnull,
    }
    settings = load_settings(env)
    settings.temporal["lazy"] = True  # type: ignore[typeddict-unknown-key] # of Client.connect
    converter = (await connect(settings)).data_converter
    assert isinstance(converter.payload_codec, EverlongCodec)
    assert isinstance(converter.payload_codec.inner, Xor)
    for value in ("short", "x" * 20_000):
        encoded = await converter.encode([value])
        assert await converter.decode(encoded, [str]) == [value]
    settings = dataclasses.replace(settings, codec="")
    without = (await connect(settings)).data_converter
    inline = await converter.encode(["short"])
    with pytest.raises(ConfigError, match=r"'binary/xor'\).*--codec module:name"):
        await without.decode(inline, [str])


async def test_an_outer_codec_sees_refs_and_the_store_holds_sealed_bodies_once() -> None:
    store = MemoryBlobStore()
    plugin = EverlongPlugin(store=store, keys=KEYS, outer_codec=NeedsContext())
    client = await lazy_client(plugin, codec=Marking())
    plugin.check_client(client)
    codec = client.data_converter.payload_codec
    assert isinstance(codec, OuterCodec)
    assert isinstance(codec.ours.inner, Marking)
    again = Client(**client.config(active_config=True))
    assert again.data_converter.payload_codec is codec
    used = codec.with_context(workflow_context())
    plain = [payload(json.dumps(["x" * 20, os.urandom(9000).hex()]).encode()), payload(b'"small"')]
    encoded = await used.encode(plain)
    assert {each.metadata["encoding"] for each in encoded} == {ENCRYPTED}
    assert [is_ref(each) for each in await used.unwrap(encoded)] == [True, False]
    assert await used.decode(encoded) == plain
    assert await used.warm(encoded[0])
    assert await used.warm(encoded[1]) is None
    assert [info async for info in store.list("")]


async def test_doctor_probes_pass_an_outer_codec_unchanged() -> None:
    codec = OuterCodec(EverlongCodec(MemoryBlobStore(), keys=KEYS), Cipher())
    checking = codec.with_context(activity(activity_type=CHECK))
    assert await checking.encode([payload(b"1")]) == [payload(b"1")]
    assert await checking.decode([payload(b"1")]) == [payload(b"1")]


def sealed_world(outer: PayloadCodec) -> tuple[FakeNamespace, OuterCodec]:
    world = FakeNamespace(MemoryBlobStore())
    world.packs = PackStore(world.store, Keyring(KEYS))
    return world, OuterCodec(EverlongCodec(world.packs, inline_bytes_max=512), outer)


async def sweep(world: FakeNamespace, codec: PayloadCodec) -> SweepReport:
    options = SweepOptions(retention=AT_ONCE)
    return await Sweep(world, codec, world.packs, options, allow_short_quarantine=True).run()


@pytest.mark.guarantee(106)
async def test_a_sweep_with_the_outer_codec_keeps_referenced_objects() -> None:
    world, codec = sealed_world(NeedsContext())
    context = WorkflowSerializationContext(namespace=NAMESPACE, workflow_id="w0")
    used = codec.with_context(context)
    kept, gone = world.start("w0"), world.start("w0")
    large = [payload(json.dumps(os.urandom(5000).hex()).encode()) for _ in range(6)]
    kept.payloads = await used.encode([kept.payloads[0], *large[:3]])
    gone.payloads = await used.encode([gone.payloads[0], *large[3:]])
    before = await world.keys()
    assert len(before) == 6
    assert (await sweep(world, codec)).quarantined.objects == 0
    world.delete(gone)
    for _ in range(3):
        assert not (await sweep(world, codec)).incomplete
    left = await world.keys()
    assert len(left) == 3
    assert left < before
    fresh = EverlongCodec(PackStore(world.store, Keyring(KEYS)), inline_bytes_max=512)
    assert await OuterCodec(fresh, NeedsContext()).with_context(context).decode(kept.payloads) == [
        payload(b'"start"'),
        *large[:3],
    ]


@pytest.mark.guarantee(106)
@pytest.mark.parametrize("outer", [None, FailingCodec()], ids=["none", "another"])
async def test_a_sweep_without_the_outer_codec_takes_nothing(outer: PayloadCodec | None) -> None:
    world, codec = sealed_world(Cipher())
    context = WorkflowSerializationContext(namespace=NAMESPACE, workflow_id="w0")
    run = world.start("w0")
    large = payload(json.dumps(os.urandom(5000).hex()).encode())
    run.payloads = await codec.with_context(context).encode([run.payloads[0], large])
    before = await world.keys()
    for _ in range(3):
        report = await sweep(world, codec.ours if outer is None else OuterCodec(codec.ours, outer))
        assert report.incomplete
        assert report.quarantined.objects == 0
    assert await world.keys() == before
