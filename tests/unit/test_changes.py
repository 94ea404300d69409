import dataclasses

import pytest

from everlong.models import Counters, ThreadState
from everlong.models.state import replace_values


def test_a_copy_with_other_values_is_what_replace_makes() -> None:
    state = ThreadState(counters=Counters(steps=3), rested=True)
    copy = replace_values(state, rested=False, holds=2)
    assert copy == dataclasses.replace(state, rested=False, holds=2)
    assert type(copy) is ThreadState
    assert state.rested
    assert state.holds == 0


def test_a_field_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="ThreadState has no field 'tired'"):
        replace_values(ThreadState(), tired=True)
