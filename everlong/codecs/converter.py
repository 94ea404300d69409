"""A data converter that keeps its copies for serialization contexts."""

import dataclasses
from typing import Final, Self

from temporalio.converter import DataConverter, SerializationContext

# About 2 KB each. A step of a thread has about four contexts.
_COPIES_MAX: Final = 1024


@dataclasses.dataclass(frozen=True)
class ContextConverter(DataConverter):
    """A `DataConverter` that makes one copy for each serialization context.

    The SDK asks for a copy several times for each payload, and makes new converters each time.
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


def with_cached_contexts(converter: DataConverter) -> DataConverter:
    """Return a converter that keeps its copies; a class of a team's own stays as it is."""
    if type(converter) is not DataConverter:
        return converter
    values = {
        each.name: getattr(converter, each.name)
        for each in dataclasses.fields(converter)
        if each.init
    }
    return ContextConverter(**values)
