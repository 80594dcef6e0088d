"""Whatever stands in the file, the answer is a cluster or a ConfigError, quickly."""

from __future__ import annotations

import contextlib
from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from exaserve.config import parse_cluster, to_yaml
from exaserve.config.cluster import SCHEMA, ClusterFile
from exaserve.config.convert import fields_of, is_record, key_of
from exaserve.domain.errors import ConfigError


def all_keys(kind: Any, seen: frozenset[Any] = frozenset()) -> set[str]:
    keys: set[str] = set()
    for name, hint in fields_of(kind).items():
        keys.add(key_of(kind, name, SCHEMA))
        for each in (hint, *getattr(hint, "__args__", ())):
            if is_record(each) and each not in seen:
                keys |= all_keys(each, seen | {each})
    return keys


KEYS = sorted(all_keys(ClusterFile) | {"interval_ms", "url", "name", "address", "id", "<<"})
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12),
    st.sampled_from(["5s", "200ms", "64MiB", "http://a:1", "http://127.0.0.1:8001", "entropy", "Llama-3-8B", "H100"]),
)  # fmt: skip
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=25,
)


def read(text: str | bytes) -> None:
    with contextlib.suppress(ConfigError):
        cluster = parse_cluster(text)
        cluster.replicas()
        to_yaml(cluster)


@settings(max_examples=300)
@given(st.text(max_size=200) | st.binary(max_size=200))
@example("[" * 100_000)
@example("{a: " * 50_000)
@example("? " * 50_000)
@example("- " * 50_000)
@example("model: " + "9" * 10_000)
@example("telemetry: {interval: " + "9" * 400 + "s}")
@example("telemetry: {interval: 1e308}")
@example("? [a, {b: c}]\n: d\nmodel: x")
@example("? *a\n: d")
@example("\ud800")
@example("model: '\ud800'")
@example("%YAML 9.9\n---\na: b")
@example("a: !!binary x\nb: ! y")
def test_any_text(text: str | bytes) -> None:
    read(text)


@settings(max_examples=400)
@given(st.dictionaries(st.sampled_from(KEYS), trees, max_size=8))
def test_any_tree_of_known_keys(tree: dict[str, Any]) -> None:
    read(yaml.safe_dump(tree))
