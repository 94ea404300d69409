"""Data converters: one caches its copies for contexts, the other explains unreadable payloads."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final, Self

from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter, DefaultPayloadConverter, SerializationContext

from everlong.errors import ConfigError

# Bound of the cache: about 2 KB a copy. A step of a thread has about four contexts.
_COPIES_MAX: Final = 1024


@dataclasses.dataclass(frozen=True)
class ContextConverter(DataConverter):
    """A `DataConverter` that makes one copy for each serialization context.

    The SDK calls `with_context` several times for each payload, and builds new converters each time.
    """

    _copies: dict[SerializationContext, Self] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def with_context(self, context: SerializationContext) -> Self:
        """See `DataConverter`."""
        found = self._copies.get(context)
        if found is None:
            found = super().with_context(context)
            if len(self._copies) >= _COPIES_MAX:
                self._copies.clear()
            self._copies[context] = found
        return found


def cache_contexts(converter: DataConverter) -> DataConverter:
    """Return a converter that caches its copies; a team's own converter class is returned unchanged."""
    if type(converter) is not DataConverter:
        return converter
    values = {
        each.name: getattr(converter, each.name)
        for each in dataclasses.fields(converter)
        if each.init
    }
    return ContextConverter(**values)


class ExplainingPayloadConverter(DefaultPayloadConverter):
    """The SDK's converter, with a remedy in its error for a payload that another codec has encoded.

    It is for clients of Everlong's own workflows. They exchange JSON, so any other payload was encoded
    by a codec that the workers have and this client lacks.
    """

    def from_payloads(
        self, payloads: Sequence[Payload], type_hints: list[type] | None = None
    ) -> list[Any]:
        """See `PayloadConverter`."""
        try:
            return super().from_payloads(payloads, type_hints)
        except (KeyError, RuntimeError, UnicodeDecodeError):
            # Not chained: these errors quote the payload.
            encodings = {each.metadata.get("encoding", b"") for each in payloads}
            names = ", ".join(
                sorted(repr(each[:60].decode(errors="replace")) for each in encodings)
            )
            raise ConfigError(
                f"a thread's values cannot be read here (encoding {names}): its workers have a payload "
                "codec that this process lacks, or a different one of the same name. Name the codec: "
                "everlong serve --codec module:name, or EVERLONG_CODEC=module:name for every command."
            ) from None
