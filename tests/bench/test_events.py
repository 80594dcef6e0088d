from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from exaserve.bench.events import EventReader, usage_tokens

EVENTS = [
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}',
    b'data: {"choices":[{"delta":{"role":"assistant","content":null}}]}',
    b'data: {"choices":[{"delta":{"content":"a"}}]}',
    b'data: {"choices":[{"delta":{"content": "\\n\\n"}}]}',
    b'data: {"choices":[{"delta":{"content":"data: "}}]}',
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}',
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":17}}',
    b"data: [DONE]",
]


@given(st.lists(st.integers(0, 600), max_size=12), st.sampled_from([b"\n\n", b"\r\n\r\n"]))
def test_any_cut_gives_the_same_counts(cuts, end):
    text = end.join(EVENTS) + end
    reader = EventReader()
    firsts = 0
    places = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    for start, stop in itertools.pairwise(places):
        firsts += reader.feed(text[start:stop])
    assert firsts == 1
    assert reader.events == len(EVENTS)
    assert reader.before_token == 2
    assert reader.finish() == (True, False, 17)


def test_the_first_token_is_in_the_piece_that_completes_it():
    reader = EventReader()
    assert not reader.feed(EVENTS[0] + b"\n\n")
    assert not reader.feed(EVENTS[2][:-4])
    assert reader.feed(EVENTS[2][-4:] + b"\n\n")
    assert not reader.feed(EVENTS[3] + b"\n\n")


def test_other_dialects_have_first_tokens_too():
    for text in (
        b'data: {"choices":[{"text":"a"}]}\n\n',
        b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\n\n',
        b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{"}}]}}]}\n\n',
        b'event: content_block_delta\ndata: {"delta":{"type":"text_delta","text":"a"}}\n\n',
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}\n\n',
    ):
        assert EventReader().feed(text), text


def test_a_completion_chunk_without_text_is_a_token_unless_it_is_the_end():
    chunk = b'data: {"object":"text_completion","choices":[{"index":0,"text":"","finish_reason":%s}]}\n\n'
    assert EventReader().feed(chunk % b"null")
    assert not EventReader().feed(chunk % b'"stop"')


def test_comments_are_no_events():
    reader = EventReader()
    assert not reader.feed(b": keep-alive\n\n")
    assert reader.events == 0


def test_content_events_stand_in_for_a_missing_usage():
    reader = EventReader()
    for item in EVENTS[:6]:
        reader.feed(item + b"\n\n")
    reader.feed(b"data: [DONE]\n\n")
    assert reader.finish() == (True, False, None)
    assert reader.content_events() == 3
    assert EventReader().content_events() == 0


def test_closing_events_that_come_one_by_one_are_no_tokens():
    reader = EventReader()
    for item in EVENTS:
        reader.feed(item + b"\n\n")
    assert reader.finish() == (True, False, 17)
    assert reader.content_events() == 3


def test_comments_between_tokens_are_no_events():
    reader = EventReader()
    reader.feed(EVENTS[2] + b"\n\n")
    reader.feed(b": ping\n\n")
    reader.feed(EVENTS[2] + b"\n\n: ping\n\n" + EVENTS[2] + b"\n\n")
    assert reader.token_events == 3


def test_usage_says_what_came_from_the_cache():
    reader = EventReader()
    reader.feed(
        b'data: {"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":7,'
        b'"prompt_tokens_details":{"cached_tokens":16}}}\n\n'
    )
    assert reader.usage() == (30, 7, 16, None)


def test_error_events_are_seen_and_words_about_errors_are_not():
    for text in (b'data: {"error":{"message":"x"}}\n\n', b'event: error\ndata: {"type":"error"}\n\n'):
        reader = EventReader()
        reader.feed(text)
        assert reader.finish()[1], text
    reader = EventReader()
    reader.feed(b'data: {"choices":[{"delta":{"content":"data: {\\"error\\": 1}"}}]}\n\n')
    assert not reader.finish()[1]


def test_usage_of_plain_answers():
    assert usage_tokens(b'{"usage":{"prompt_tokens":1,"completion_tokens": 12}}') == 12
    assert usage_tokens(b'{"usage":{"input_tokens":1,"output_tokens":13}}') == 13
    assert usage_tokens(b"{}") is None
