"""Facts from bodies of every dialect, and bodies nobody should send."""

from __future__ import annotations

import gzip
import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaserve.config.settings import RetrySettings
from exaserve.domain.errors import ClientError, InvalidBody, UnsupportedEncoding
from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.domain.request import RequestFacts, Usage
from exaserve.gateway.http.inspect import inspect
from exaserve.gateway.http.kept import KeptResponses
from exaserve.gateway.http.parse import Request
from exaserve.gateway.http.routes import resolve
from exaserve.gateway.http.usage import find_usage
from exaserve.scheduling import Scheduler, SchedulerConfig
from exaserve.serving.budget import RetryBudget


def serving(*models: str) -> Scheduler:
    """A scheduler with a replica for each model."""
    made = Scheduler(SchedulerConfig(), Random(1))
    for model in models:
        made.add(ReplicaSpec(id=ReplicaId(model), url="http://r:1", models=(model,)), 0.0)
    return made


def facts(
    data: bytes | dict[str, Any],
    path: str = "/v1/chat/completions",
    served: tuple[str, ...] = ("tiny", "small"),
    **headers: str,
) -> RequestFacts:
    request = Request()
    request.body = data if isinstance(data, bytes) else json.dumps(data).encode()
    request.session = headers.get("session", "").encode()
    request.priority = headers.get("priority", "").encode()
    request.head = b"POST / HTTP/1.1\r\ncontent-type: " + headers.get("type", "application/json").encode()
    request.deadline = headers.get("deadline", "").encode()
    if "coding" in headers:
        request.head += b"\r\nContent-Encoding: " + headers["coding"].encode()
    return inspect(request, resolve(b"POST", path.encode()), serving(*served))


def test_a_chat_request() -> None:
    found = facts(
        {"messages": [{"role": "user", "content": "x" * 4000}], "max_tokens": 50, "stream": True, "model": "m"},
        priority="7",
    )
    assert (found.model, found.stream, found.priority, found.output_tokens) == ("m", True, 7, 50)
    assert 1000 <= found.prompt_tokens <= 1020
    assert found.total_tokens_max == found.prompt_tokens + 50
    assert len(found.prefix) >= 7
    assert found.route == "/v1/chat/completions"
    assert facts({"messages": [], "model": "m"}).total_tokens_max == 0, "any room for an answer will do"


def test_the_next_turn_shares_its_prefix() -> None:
    turns = [{"role": "user", "content": "x" * 3000}]
    first = facts({"model": "m", "messages": turns}).prefix
    turns += [{"role": "assistant", "content": "y" * 900}, {"role": "user", "content": "more"}]
    second = facts({"stream": True, "model": "m", "messages": turns}).prefix
    assert len(second) > len(first) > 4
    assert second[: len(first)] == first


@pytest.mark.parametrize(
    ("fields", "session"),
    [
        ({"user": "u"}, "u"),
        ({"prompt_cache_key": "k", "user": "u"}, "k"),
        ({"conversation": {"id": "c"}}, "c"),
        ({"conversation": "c"}, "c"),
        ({"metadata": {"user_id": "a"}}, "a"),
        ({"safety_identifier": "s"}, "s"),
        ({"user": 3}, None),
        ({}, None),
    ],
)
def test_sessions(fields: dict[str, Any], session: str | None) -> None:
    assert facts({"model": "m", "messages": []} | fields).session == session
    assert facts({"model": "m"} | fields, session="header").session == "header"


@pytest.mark.parametrize(
    ("path", "fields", "least"),
    [
        ("/v1/completions", {"prompt": "x" * 400}, 100),
        ("/v1/completions", {"prompt": list(range(500))}, 500),
        ("/v1/completions", {"prompt": [[1, 2], [3]]}, 3),
        ("/v1/embeddings", {"input": ["x" * 200] * 2}, 100),
        ("/v1/responses", {"input": "x" * 400, "instructions": "y" * 400}, 200),
        ("/v1/messages", {"system": "s" * 400, "messages": []}, 100),
        ("/v1/rerank", {"query": "q" * 100, "documents": ["d" * 300]}, 100),
        ("/v1/score", {"text_1": "a" * 200, "text_2": "b" * 200}, 100),
    ],
)
def test_prompt_lengths(path: str, fields: dict[str, Any], least: int) -> None:
    found = facts({"model": "m"} | fields, path)
    assert least <= found.prompt_tokens <= least * 1.2 + 10
    assert (found.output_tokens > 0) == (path in ("/v1/completions", "/v1/responses", "/v1/messages"))


def test_pictures_are_not_counted_as_text() -> None:
    url = "data:image/png;base64," + "A" * 2_000_000
    found = facts(
        {"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}
    )
    assert 500 < found.prompt_tokens < 2000


BAD = {
    "empty": b"",
    "array": b"[1]",
    "string": b'"x"',
    "null": b"null",
    "cut": b'{"model":"m"',
    "no model": b"{}",
    "null model": b'{"model":null}',
    "number": b'{"model":3}',
    "list": b'{"model":["m"]}',
    "blank": b'{"model":""}',
    "long": b'{"model":"' + b"m" * 600 + b'"}',
    "trailing": b'{"model":"m"} x',
    "deep": b'{"model":"m","a":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "deep model": b'{"model":' + b"[" * 200_000,
    "bytes": b"\xff\xfe\xfd",
    "not utf-8": b'{"model":"\xff"}',
}


@pytest.mark.parametrize("name", BAD)
def test_bad_bodies(name: str) -> None:
    with pytest.raises(InvalidBody) as caught:
        facts(BAD[name])
    assert caught.value.message


@pytest.mark.parametrize("padding", [0, 2 << 20])
def test_what_engines_take_is_taken_at_any_size(padding: int) -> None:
    """Python's json, with which they read, takes NaN, lone surrogates, a byte order mark and numbers without bound."""
    more = b'"pad":"' + b"x" * padding + b'",'
    for fields in (b'"x":NaN,"y":-Infinity,', b'"user":"\\ud800",', b'"max_tokens":1e400,', b'"n":-1e999,'):
        assert facts(b"{" + more + fields + b'"model":"m"}').model == "m", fields
    assert facts(b"\xef\xbb\xbf{" + more + b'"model":"m"}').model == "m"


def test_what_a_body_without_a_model_means() -> None:
    form = FORM.replace(b'name="model"', b'name="language"') % b""
    with pytest.raises(InvalidBody, match="not just one model"):
        facts({"messages": []})
    only = ("only",)
    assert facts({"messages": []}, served=only).model == "only"
    assert facts({"model": None}, served=only).model == "only"
    assert facts(form, "/v1/audio/transcriptions", only, type="multipart/form-data; boundary=B").model == "only"
    with pytest.raises(InvalidBody, match="must be a string"):
        facts({"model": 3}, served=only)
    with pytest.raises(InvalidBody, match="1 to 512"):
        facts({"model": ""}, served=only)


def test_a_deadline_is_a_whole_number_of_milliseconds() -> None:
    assert facts({"model": "m"}, deadline="1500").model == "m"
    for value in ("abc", "-5", "1.5", "1e3", "5s"):
        with pytest.raises(ClientError, match="deadline-ms") as caught:
            facts({"model": "m"}, deadline=value)
        assert caught.value.param == "x-exaserve-deadline-ms"


def test_an_encoded_body_is_refused_by_its_name() -> None:
    for coding in ("gzip", "zstd", "br"):
        with pytest.raises(UnsupportedEncoding, match=coding) as caught:
            facts(gzip.compress(b'{"model":"m"}'), coding=coding)
        assert caught.value.status == 415
    assert facts(b'{"model":"m"}', coding="identity").model == "m"


def test_a_large_prompt_is_measured_whole_and_hashed_at_its_beginning() -> None:
    small, large = ({"model": "m", "messages": [{"role": "user", "content": "y" * n}]} for n in (200_000, 3_000_000))
    assert facts(large).prompt_bytes - facts(small).prompt_bytes == 2_800_000
    assert facts(large).prefix == facts(small).prefix


def test_what_engines_take_is_taken() -> None:
    assert facts(b'{"model":"first","model":"last"}').model == "last"
    assert facts(b'{"stream":"yes","max_tokens":"many","n":-3,"model":"m"}').stream is False


FORM = (
    b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n%b\r\n'
    b'--B\r\nContent-Disposition: form-data; name="stream"\r\n\r\ntrue\r\n'
    b'--B\r\ncontent-disposition: form-data; name="model"\r\n\r\nwhisper\r\n--B--\r\n'
)


@pytest.mark.parametrize("before", [b"", b"\r\n", b"This is a form\r\nwith a --B preamble\r\n"])
@pytest.mark.parametrize("kind", ["boundary=B", "Boundary=B", 'charset=utf-8; BOUNDARY="B"', "boundary = B"])
def test_forms_that_parsers_take(before: bytes, kind: str) -> None:
    found = facts(before + FORM % b"", "/v1/audio/transcriptions", type=f"Multipart/Form-Data; {kind}")
    assert (found.model, found.stream) == ("whisper", True)


def test_multipart() -> None:
    for noise in (b"", b"\r\n\r\n--C", b"x" * 100_000, b'name="model"\r\n\r\nwrong'):
        found = facts(FORM % noise, "/v1/audio/transcriptions", type="multipart/form-data; boundary=B")
        assert (found.model, found.stream) == ("whisper", True)
    for data, kind in (
        (FORM, "multipart/form-data"),
        (b"--B\r\n", "multipart/form-data; boundary=B"),
        (FORM, "multipart/form-data; boundary=Z"),
    ):
        with pytest.raises(InvalidBody):
            facts(data, "/v1/audio/transcriptions", type=kind)


@given(
    st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(),
            lambda c: (
                st.lists(c)
                | st.dictionaries(
                    st.sampled_from(
                        ["model", "stream", "messages", "user", "n", "max_tokens", "metadata", "prompt", "conversation"]
                    ),
                    c,
                )
            ),
        ).map(lambda v: json.dumps(v).encode()),
    )
)
def test_any_body_gives_facts_or_a_clear_error(data: bytes) -> None:
    for kind in ("application/json", "multipart/form-data; boundary=B"):
        try:
            assert facts(data, type=kind).model
        except InvalidBody as error:
            assert error.message  # noqa: PT017 - both outcomes are right


@pytest.mark.parametrize(
    ("tail", "usage"),
    [
        (
            b'{"usage":{"prompt_tokens":5,"total_tokens":12,"completion_tokens":7,"prompt_tokens_details":null}}',
            Usage(5, 7),
        ),
        (
            b'"usage": {"completion_tokens": 7, "prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}}',
            Usage(5, 7, 3),
        ),
        (
            b'"usage":{"prompt_tokens":5,"total_tokens":12,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":4}}',
            Usage(5, 7, 4),
        ),
        (
            b'event: message_delta\ndata: {"usage":{"input_tokens":9,"output_tokens":2,"cache_read_input_tokens":8}}',
            Usage(9, 2, 8),
        ),
        (b'"usage":{"prompt_tokens":5,"total_tokens":5}', Usage(5, 0)),
        (b'data: {"usage":null}\n\ndata: [DONE]\n\n', None),
        (b'{"content":"\\"usage\\":{\\"prompt_tokens\\":1}"}', None),
        (b"", None),
    ],
)
def test_usage(tail: bytes, usage: Usage | None) -> None:
    assert find_usage(tail) == usage
    assert find_usage(b"x" * 10_000 + tail) == usage


def test_retry_budget() -> None:
    budget = RetryBudget(RetrySettings(budget_ratio=0.5, budget_min_per_s=0.2, budget_window_s=10.0))
    assert [budget.take(100.0) for _ in range(3)] == [True, True, False]
    budget.fresh += 10
    assert [budget.take(101.5) for _ in range(6)] == [True] * 5 + [False]
    budget.validate()
    assert not budget.take(105.0)
    assert budget.take(110.5), "the first two have left the window"
    budget.count(500.0)
    budget.validate()
    assert [budget.take(500.0) for _ in range(3)] == [True, True, False]


def test_a_stored_response_is_asked_for_where_it_is_kept() -> None:
    kept = KeptResponses(responses_max=4)
    one, two = ReplicaId("r1"), ReplicaId("r2")
    assert kept.learn(b'{"id":"resp_a","object":"response"}', one, "tiny")
    assert kept.learn(b'event: response.created\ndata: {"response":{"id": "resp_b"}}', two, "small")
    assert not kept.learn(b'{"id":"chatcmpl-1"}', two, "small")

    def asked(method: bytes, path: bytes, data: bytes = b"") -> RequestFacts:
        request = Request()
        request.body = data
        return inspect(request, resolve(method, path), serving("tiny", "small"), kept)

    for method, path in ((b"GET", b"/v1/responses/resp_a"), (b"POST", b"/v1/responses/resp_a/cancel")):
        found = asked(method, path)
        assert (found.kept_by, found.model) == (one, "tiny")
    goes_on = b'{"model":"small","input":"x","previous_response_id":"resp_b"}'
    assert asked(b"POST", b"/v1/responses", goes_on).kept_by == two
    assert asked(b"POST", b"/v1/responses", goes_on.replace(b"resp_b", b"resp_c")).kept_by is None
    assert asked(b"POST", b"/v1/responses", b'{"model":"m","previous_response_id":7}').kept_by is None
    assert asked(b"GET", b"/v1/responses/resp_c").kept_by is None
    for n in range(100):
        kept.learn(b'{"id":"resp_%d"}' % n, one, "tiny")
        assert kept.find("resp_a") is not None, "what is asked for stays"
        assert len(kept) <= 8
    assert kept.find("resp_b") is None
