from __future__ import annotations

import itertools

import pytest

from exaserve.health import IllegalTransition, State
from exaserve.health.lifecycle import AVAILABLE, TRANSITIONS, Event, transition


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_pair_is_in_the_table_or_raises(state, event):
    if (state, event) in TRANSITIONS:
        assert transition(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransition, match=event.name):
            transition(state, event)


def test_no_event_leads_from_unavailable_to_available_but_a_good_probe():
    for (state, event), after in TRANSITIONS.items():
        if state not in AVAILABLE and after in AVAILABLE:
            assert event is Event.PROBED_WELL


def test_from_every_state_there_is_a_way_back_to_healthy():
    for start in State:
        reached = {start}
        while True:
            more = {after for (state, _), after in TRANSITIONS.items() if state in reached} | reached
            if more == reached:
                break
            reached = more
        assert State.HEALTHY in reached
