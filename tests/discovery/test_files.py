"""A list of replicas in a file: what may stand in it, and what each mistake answers. Agents' announcements."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaserve.discovery import Defaults, read_targets
from exaserve.discovery.entries import spec_of, tags_as_mapping, url_of
from exaserve.domain.errors import ConfigError
from exaserve.domain.replica import ReplicaSpec


def read(folder: Path, text: str) -> list[ReplicaSpec]:
    path = folder / "replicas.yaml"
    path.write_text(text)
    specs, wrong = read_targets(path, Defaults(("d",)))
    assert not wrong
    return specs


def test_addresses_and_mappings_in_yaml_and_json(tmp_path: Path) -> None:
    text = (
        "- 10.0.0.1:8000\n- http://b:8001/\n- {url: '[::1]:8002', id: n/r2, models: [x, y], weight: 0.5, version: v2}\n"
    )
    a, b, c = read(tmp_path, text)
    assert (a.id, a.url, a.models) == ("10.0.0.1:8000", "http://10.0.0.1:8000", ("d",))
    assert b.url == "http://b:8001"
    assert (c.id, c.url, c.models, c.weight, c.version) == ("n/r2", "http://[::1]:8002", ("x", "y"), 0.5, "v2")
    assert read(tmp_path, '["10.0.0.1:8000"]') == [a]
    assert read(tmp_path, "") == read(tmp_path, "[]") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "must be a list"),
        ("- [1]", "[0]: must be host:port or a mapping"),
        ("- {url: 'b:2', wieght: 1}\n- nowhere", "none of its 2 entries is a replica; [0] b:2: 'wieght': unknown key"),
        ("- {id: x}", "url: '' is not an address"),
        ("- nowhere", "is not an address"),
        ("- h:99999", "port: 99999"),
        ("- {url: 'h:1', weight: heavy}", "weight: 'heavy' is not a number"),
        ("- {url: 'h:1', weight: -1}", "weight: '-1' is not a number of 0 or more"),
        ("- {url: 'h:1', weight: .inf}", "weight"),
        ("- 'h h:1'", "address: 'h h' is not a host name"),
        ("- [", "cannot be read"),
        ("- &a b:1\n- *a", "cannot be read"),
        ("- !!python/object:os.system x", "cannot be read"),
        ('- "a\\u0000:1"', "control characters"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert words in caught.value.message
    assert "replicas.yaml" in caught.value.message


def test_an_entry_that_is_wrong_is_named_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "replicas.yaml"
    path.write_text("- a:1\n- {url: 'b:2', wieght: 1}\n- {id: c, url: 'c:3', weight: heavy}\n- host:port\n- d:4\n")
    specs, wrong = read_targets(path, Defaults())
    assert [spec.id for spec in specs] == ["a:1", "d:4"]
    assert list(wrong) == ["[1] b:2", "[2] c", "[3] host:port"]
    assert "'wieght': unknown key" in wrong["[1] b:2"]
    assert wrong["[2] c"] == "weight: 'heavy' is not a number of 0 or more"


@given(st.binary(max_size=80))
def test_any_bytes_are_a_list_or_a_config_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(data)
    with contextlib.suppress(ConfigError):
        assert all(isinstance(each, ReplicaSpec) for each in read_targets(path, Defaults())[0])


@given(st.dictionaries(st.sampled_from(["weight", "max_model_len", "models", "engine"]), st.text(max_size=20)))
def test_whatever_a_registry_says_is_a_replica_or_a_value_error(said: dict[str, str]) -> None:
    with contextlib.suppress(ValueError):
        assert spec_of("x", "h", 1, said, Defaults()).weight >= 0


def test_tags() -> None:
    assert tags_as_mapping(["model=a", "model=b", "weight=2", "x=y", "plain"]) == {"models": "a,b", "weight": "2"}
    assert url_of("fe80::1", 80) == "http://[fe80::1]:80"
