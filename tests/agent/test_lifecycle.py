"""The table of a replica's life, and the pure decisions around it."""

from __future__ import annotations

import pytest

from exaserve.agent import policy
from exaserve.agent.lifecycle import HAS_PROCESS, TRANSITIONS, IllegalUnitTransition, UnitEvent, UnitState, transition
from exaserve.agent.policy import HangWatch, RestartPolicy, alarming, diagnose, telling
from exaserve.wire.messages import EXIT_CAUSES


def test_every_state_can_be_reached_and_left() -> None:
    reached = {UnitState.STOPPED}
    while True:
        more = {new for (old, _), new in TRANSITIONS.items() if old in reached} - reached
        if not more:
            break
        reached |= more
    assert reached == set(UnitState)
    assert {old for old, _ in TRANSITIONS} == set(UnitState)


def test_only_loading_answering_and_warming_lead_to_ready() -> None:
    into = {(old, event) for (old, event), new in TRANSITIONS.items() if new is UnitState.READY}
    assert into == {(UnitState.WARMING, UnitEvent.WARMED), (UnitState.DRAINING, UnitEvent.RESUME)}


def test_every_state_with_a_process_can_be_stopped_and_can_see_it_end() -> None:
    for state in HAS_PROCESS:
        assert (state, UnitEvent.EXITED) in TRANSITIONS
        assert state is UnitState.STOPPING or TRANSITIONS[state, UnitEvent.STOP] is UnitState.STOPPING


def test_illegal_pairs_raise() -> None:
    with pytest.raises(IllegalUnitTransition, match="WARMED cannot happen in STOPPED"):
        transition(UnitState.STOPPED, UnitEvent.WARMED)


@pytest.mark.parametrize(
    ("line", "cause", "hopeless"),
    [
        ("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", "damaged weights", True),
        ("RuntimeError: PytorchStreamReader failed reading zip archive", "damaged weights", True),
        ("llama_model_load: error loading model: invalid magic", "damaged weights", True),
        ("OSError: x/y is not a local folder and is not a valid model identifier", "weights are not there", True),
        ("api_server.py: error: unrecognized arguments: --tenosr", "wrong arguments", True),
        ("vllm: No such file or directory", "program not found", True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "out of accelerator memory", False),
        ("OSError: [Errno 98] address already in use", "port in use", False),
        (
            "ValueError: Quantization method (x) does not match the quantization method specified",
            "wrong arguments",
            True,
        ),
        ("ERROR Worker proc VllmWorker-0 died unexpectedly (exit code: None)", "engine process died", False),
        ("Value error, Sleep mode is not supported on current platform.", "wrong arguments", True),
        ("No such option: --tenosr", "wrong arguments", True),
        ("Invalid value for '--port': 'x' is not a valid integer.", "wrong arguments", True),
        ("INFO all is well", "", False),
    ],
)
def test_last_words_are_understood(line, cause, hopeless) -> None:
    found = diagnose(["INFO loading", line, "shutting down"])
    assert (found.cause, found.hopeless) == (cause, hopeless)
    if cause:
        assert found.line == line


REJECTED_BY_VLLM = """\
(APIServer pid=8) INFO 12-01 10:00:00 non-default args: {'enable_sleep_mode': True}
(APIServer pid=8) Traceback (most recent call last):
(APIServer pid=8)   File "vllm/engine/arg_utils.py", line 1, in create_engine_config
(APIServer pid=8) pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig
(APIServer pid=8)   Value error, Sleep mode is not supported on current platform. [type=value_error, input_value=1]
(APIServer pid=8)     For further information visit https://errors.pydantic.dev/2.12/v/value_error
"""
BOXED = """\
Usage: exaserve emulate [OPTIONS]
\x1b[31m╭─\x1b[0m\x1b[31m Error \x1b[0m\x1b[31m──────────────────────────────╮\x1b[0m
\x1b[31m│\x1b[0m No such option: --tenosr                 \x1b[31m│\x1b[0m
\x1b[31m╰───────────────────────────────────────╯\x1b[0m
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (REJECTED_BY_VLLM, "Value error, Sleep mode is not supported on current platform."),
        (BOXED, "No such option: --tenosr"),
    ],
)
def test_arguments_that_an_engine_rejects_are_named_and_not_tried_again(text, line) -> None:
    found = diagnose(telling(text.splitlines(), 50))
    refused = RestartPolicy(5, 1.0, 60.0, 600.0).failed("ended with exit code 1", found, False, 0.0)
    assert (refused.delay_s, refused.reason) == (None, f"ended with exit code 1: wrong arguments: {line}")


def test_every_cause_that_is_recognised_has_a_counter_of_its_own() -> None:
    assert {cause for cause, _, _ in policy._SIGNS} | {"other"} == set(EXIT_CAUSES)


def test_last_words_leave_out_what_says_nothing() -> None:
    end = ["INFO up", "ERROR RuntimeError: Executor failed.", 'INFO: 127.0.0.1:1 - "GET /metrics HTTP/1.1" 200 OK', ""]
    end += ["nanobind: leaked 4 instances!", ' - leaked function "abort"', " - ... skipped remainder", "See https://x"]
    assert telling(end, 8) == ["ERROR RuntimeError: Executor failed."]
    assert telling(["a", "b", "c"], 2) == ["b", "c"], "where nothing is wrong, whatever came last"
    assert telling([], 8) == []


def test_of_long_lines_only_the_beginning_is_looked_at() -> None:
    """Patterns over 64 KiB take long, and the agent looks at two hundred lines."""
    lines = ["ValueError: " + "x" * 60_000, "usage: " + "y" * 60_000, "z" * 60_000]
    assert max(map(len, telling(lines, 8))) == 500
    assert len(diagnose(lines).line) == 300
    assert not alarming("x" * 60_000 + "EngineDeadError")


def test_lines_that_are_reason_to_ask_at_once() -> None:
    assert alarming("(APIServer pid=8) ERROR vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered")
    assert alarming("ERROR Worker proc VllmWorker-0 died unexpectedly (exit code: None), shutting down executor.")
    assert not alarming("ERROR request failed: prompt too long")


def test_restarts_have_growing_pauses_and_an_end() -> None:
    policy = RestartPolicy(restarts_max=3, backoff_s=1.0, backoff_max_s=3.0, window_s=100.0)
    nothing = diagnose([])
    delays = [policy.failed("ended", nothing, True, now).delay_s for now in (0.0, 1.0, 2.0)]
    assert delays == [1.0, 2.0, 3.0]
    last = policy.failed("ended", nothing, True, 3.0)
    assert last.delay_s is None and "gave up after 3 restarts" in last.reason
    assert policy.failed("ended", nothing, True, 500.0).delay_s == 1.0
    policy.forget()
    assert policy.failed("ended", nothing, True, 501.0).delay_s == 1.0


def test_damaged_weights_are_not_tried_again() -> None:
    policy = RestartPolicy(5, 1.0, 60.0, 600.0)
    found = diagnose(["SafetensorError: HeaderTooLarge"])
    refused = policy.failed("ended with exit code 1", found, False, 0.0)
    assert refused.delay_s is None
    assert "damaged weights: SafetensorError" in refused.reason
    assert policy.failed("was ended by SIGKILL", found, True, 1.0).delay_s == 1.0, "it had served: the weights are good"


def test_exit_codes_of_a_wrong_command_line_are_believed_before_an_engine_has_served() -> None:
    policy, nothing = RestartPolicy(5, 1.0, 60.0, 600.0), diagnose(["exaserve: no model of that name"])
    for code in (2, 126, 127):
        assert policy.failed(f"ended with exit code {code}", nothing, False, 0.0).delay_s is None
    assert policy.failed("ended with exit code 2", nothing, True, 0.0).delay_s == 1.0
    assert policy.failed("ended with exit code 12", nothing, False, 0.0).delay_s == 2.0


def test_no_restart_at_all_where_none_is_allowed() -> None:
    assert RestartPolicy(0, 1.0, 1.0, 10.0).failed("ended", diagnose([]), True, 0.0).delay_s is None


def test_a_hang_is_requests_without_tokens_or_no_answered_probe() -> None:
    watch = HangWatch(10.0)
    watch.reset(0.0)
    watch.sampled(3, 100.0, 1.0)
    watch.probed_well(1.0)
    watch.sampled(3, 100.0, 9.0)
    assert watch.hung(10.9) == ""
    watch.sampled(3, 100.0, 11.5)
    assert "while requests run" in watch.hung(11.5)
    watch.sampled(3, 101.0, 12.0)
    watch.probed_well(12.0)
    assert watch.hung(21.0) == ""
    watch.sampled(0, 101.0, 21.0)
    assert "no completion answered" in watch.hung(22.5), "an idle engine that answers no probe hangs too"
