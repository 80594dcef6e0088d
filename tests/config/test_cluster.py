"""The cluster file as people write it: what it means, and what each mistake answers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import yaml

from exaserve.config import Cluster, convert, diff, load_cluster, parse_cluster, show, to_yaml
from exaserve.domain.errors import ConfigError

GOOD = """\
model: meta-llama/Llama-3.1-8B-Instruct
precision: bf16
tensor_parallel_size: 1
pipeline_parallel_size: 1
num_replicas_per_node: 12
nodes: 4
scheduling:
  strategy: entropy
  health_check_interval: 5s
  max_queue_depth: 32
  kv_cache_watermark: 0.85
"""


def errors(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_cluster(text)
    return caught.value.message


def test_the_texts_keys() -> None:
    cluster = parse_cluster(GOOD)
    replicas = cluster.replicas()
    assert len(replicas) == 48
    assert len({spec.url for spec in replicas}) == len({spec.id for spec in replicas}) == 48
    assert (replicas[13].id, replicas[13].url) == ("node2/r1", "http://127.0.2.1:8002")
    assert replicas[0].models == ("meta-llama/Llama-3.1-8B-Instruct",)
    assert (cluster.scheduling.policy, cluster.scheduling.queue_depth_max) == ("entropy", 32)
    assert (cluster.scheduling.kv_watermark, cluster.health.probe_interval_s) == (0.85, 5.0)


def test_empty_file_is_all_defaults_and_no_replicas() -> None:
    assert parse_cluster("") == parse_cluster("# nothing\n") == Cluster()
    assert parse_cluster("gateway:\n").replicas() == ()


@pytest.mark.parametrize("text", ["", GOOD, "replicas: [http://a:1, {url: 'http://b:2', id: x, weight: 0.5}]"])
def test_shown_values_read_back_as_the_same_cluster(text: str) -> None:
    cluster = parse_cluster(text)
    again = parse_cluster(to_yaml(cluster))
    assert again.replicas() == cluster.replicas()
    assert (again.scheduling, again.health, again.gateway) == (cluster.scheduling, cluster.health, cluster.gateway)
    assert diff(cluster, again) == []


def test_named_replicas() -> None:
    cluster = parse_cluster(
        "model: m\nreplicas:\n- http://10.0.0.1:8000\n- {url: 'http://[::1]:9/', id: b, models: [x, y], weight: 0}\n"
    )
    first, second = cluster.replicas()
    assert (first.id, first.url, first.models, first.engine) == (
        "10.0.0.1:8000",
        "http://10.0.0.1:8000",
        ("m",),
        "auto",
    )
    assert (second.id, second.url, second.models, second.weight) == ("b", "http://[::1]:9", ("x", "y"), 0.0)


def test_nodes_with_addresses() -> None:
    cluster = parse_cluster("model: Llama-3-8B\nnodes: [{name: a, address: gpu1.example}, {name: b}]\n")
    assert [spec.url for spec in cluster.replicas()] == ["http://gpu1.example:8001", "http://127.0.2.1:8001"]


def test_pools() -> None:
    cluster = parse_cluster(
        "pools:\n- {model: Llama-3-8B, num_replicas_per_node: 2}\n- {model: Qwen3-8B, base_port: 9001}\n- {replicas: ['http://h:1']}\n"
    )
    assert [spec.id for spec in cluster.replicas()] == [
        "Llama-3-8B/node1/r0",
        "Llama-3-8B/node1/r1",
        "Qwen3-8B/node1/r0",
        "h:1",
    ]


def test_limits_that_can_be_turned_off() -> None:
    cluster = parse_cluster("scheduling: {kv_cache_watermark: off, max_queue_depth: off}")
    assert cluster.scheduling.kv_watermark >= 1e6
    assert cluster.scheduling.queue_depth_max >= 1e6
    assert parse_cluster(to_yaml(cluster)) == cluster
    assert "must be a number, not 'off'" in errors("scheduling: {bounded_load: off}")


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("200ms", 0.2), ("5s", 5.0), ("2m", 120.0), ("1m30s", 90.0), ("7", 7.0), ("0.25", 0.25), ("1h", 3600.0)],
)
def test_durations(written: str, seconds: float) -> None:
    assert parse_cluster(f"telemetry: {{interval: {written}}}").telemetry.interval_s == pytest.approx(seconds)


def test_durations_with_the_unit_in_the_key() -> None:
    assert parse_cluster("telemetry: {interval_ms: 250}").telemetry.interval_s == 0.25
    assert parse_cluster("telemetry: {interval_s: 0.5}").telemetry.interval_s == 0.5
    assert "key names the unit" in errors("telemetry: {interval_ms: 250ms}")
    assert "says the same as interval" in errors("telemetry: {interval: 1s, interval_ms: 250}")


def test_sizes() -> None:
    assert parse_cluster("gateway: {limits: {body_bytes_max: 1MiB}}").gateway.limits.body_bytes_max == 2**20
    assert parse_cluster("gateway: {limits: {body_bytes_max: 5000}}").gateway.limits.body_bytes_max == 5000
    assert "not a size" in errors("gateway: {limits: {body_bytes_max: 1 Mio}}")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("precison: fp8\nmodel: Llama-3-8B", [":1: precison: unknown key", "did you mean precision?"]),
        (
            "scheduling:\n  max_que_depth: 3",
            [":2: scheduling.max_que_depth: unknown key", "did you mean max_queue_depth?"],
        ),
        ("strategy: entropy", ["belongs under scheduling"]),
        (
            "scheduling: {strategy: entropie}",
            ["scheduling.strategy: 'entropie' is not one of", "did you mean entropy?"],
        ),
        ("scheduling: {kv_cache_watermark: 85}", ["scheduling.kv_cache_watermark", "0.85 means 85 %"]),
        ("scheduling: {max_queue_depth: many}", ["scheduling.max_queue_depth: must be a whole number, not 'many'"]),
        ("scheduling: {max_queue_depth: true}", ["must be a whole number, not true"]),
        ("scheduling: {health_check_interval: soon}", ["'soon' is not a duration", "200ms"]),
        ("scheduling: {health_check_interval: 5s}\nhealth: {probe_interval: 4s}", ["same as health.probe_interval"]),
        ("health: {probe_limit: 9s}", [":1: health.probe_limit: must not be above probe_timeout"]),
        ("model: Llama-3-8\n", ["model: ", "Llama-3-8B"]),
        ("model: Llama-3.1-405B\nhardware: L4", ["does not fit"]),
        ("model: Llama-3-8B\nhardware: H1000", ["hardware: "]),
        ("model: Llama-3-8B\nprecision: fp9", ["precision: "]),
        ("model: Llama-3-8B\ntensor_parallel_size: 3", ["Tensor parallel size 3 does not divide"]),
        ("model: Llama-3-8B\nengine: vlm", ["engine: 'vlm' is not one of", "did you mean vllm?"]),
        ("model: Llama-3-8B\nengine: command", ["engine_command must give"]),
        ("model: Llama-3-8B\nbase_port: 65530\nnum_replicas_per_node: 12", ["base_port", "65535"]),
        ("model: 8", ['model: must be text; put it in quotes: "8"']),
        ("model: [a]", ["model: must be text, not a list"]),
        ("model: Llama-3-8B\nmodel: Qwen3-8B", [":2:1: model: stands twice, first in line 1"]),
        ("nodes: 0\nmodel: Llama-3-8B", ["nodes: must be 1 or more, not 0"]),
        ("nodes: 4", ["nodes: needs a model to start"]),
        ("nodes: []\nmodel: Llama-3-8B", ["nodes: is an empty list"]),
        ("nodes: [{name: a}, {name: a}]\nmodel: Llama-3-8B", ["nodes[1].name: 'a' is also the name of nodes[0]"]),
        ("nodes: [{address: x}]\nmodel: Llama-3-8B", ["nodes[0].name: is missing"]),
        ("nodes: 4\nreplicas: [http://a:1]", ["nodes: is there, but replicas says where they run"]),
        ("num_replicas_per_node: 4\nreplicas: [http://a:1]", ["num_replicas_per_node: says how replicas are started"]),
        ("replicas: []", ["replicas: is empty"]),
        ("replicas: http://a:1", ["replicas: must be a list, not 'http://a:1'"]),
        ("replicas: [https://a:1]", ["replicas[0]: 'https://a:1': replicas are reached over plain HTTP"]),
        ("replicas: ['a:1']", ["has no http:// in front"]),
        ("replicas: [http://a:1/v1]", ["has a path; leave it out: http://a:1"]),
        ("replicas: [http://a:70000]", ["replicas[0]", "not an address"]),
        ("replicas: [http://a:0]", ["from 1 to 65535"]),
        ("replicas: ['http://a b:1']", ["not a host name"]),
        ("replicas: ['http://u@a:1']", ["user name"]),
        ("replicas: [http://a:1, http://A:1/]", ["replicas[1]: a:1 is also the address of replicas[0]"]),
        ("replicas: [http://localhost:1, http://127.0.0.1:1]", ["also the address of replicas[0]"]),
        (
            "replicas: [{url: http://a:1, id: x}, {url: http://b:1, id: x}]",
            ["replicas[1].id: 'x' is also the id of replicas[0]"],
        ),
        ("replicas: [{id: x}]", ["replicas[0].url: is missing"]),
        ("replicas: [7]", ["replicas[0]: must be text or a mapping, not 7"]),
        ("model: Llama-3-8B\npools: [{model: Qwen3-8B}]", [":1: model: stands beside pools"]),
        (
            "pools: [{model: Llama-3-8B}, {model: Qwen3-8B}]",
            ["pools[1].base_port: ports 8001 to 8001 meet those of pools[0]"],
        ),
        ("pools: [{precision: fp8}]", ["pools[0].precision: needs a model"]),
        ("gateway: {port: 70000}", ["gateway.port: must be 65535 or less"]),
        ("gateway: {port: 9, admin_port: 9}", ["gateway.admin_port: is the same as gateway.port"]),
        ("gateway: {host: 'not a host'}", ["gateway.host"]),
        (
            "gateway: {host: 0.0.0.0, port: 8003}\nmodel: Llama-3-8B\nnum_replicas_per_node: 4",
            ["gateway.port: 8003 is also a port"],
        ),
        ("gateway: {timeouts: {total: 1s, connect: 2s}}", ["gateway.timeouts.connect: is longer than"]),
        ("gateway: []", ["gateway: must be a mapping"]),
        ("health: {probe_interval: 0}", [":1: health.probe_interval: must be above 0, not 0"]),
        ("model: x\nversion: 1.10", ['version: must be text; put it in quotes: "1.10"']),
        ("- model: x", ["must be a mapping of keys"]),
        ("just text", ["must be a mapping of keys"]),
        ("model:\n\t- x", [":2:1: not valid YAML", "Indent with spaces, not tabs"]),
        ("model: a: b", [":1:9: not valid YAML", "quotes"]),
        ("a: &x 1\nb: *x", ["aliases"]),
        ("model: !!python/name:os.system x", ["tags"]),
        ("a: 1\n---\nb: 2", ["several documents"]),
        ('model: "a\\x07b"', ["control characters"]),
    ],
)
def test_mistakes_name_the_field_the_line_and_the_repair(text: str, parts: list[str]) -> None:
    message = errors(text)
    for part in parts:
        assert part in message


def test_all_problems_are_reported_at_once_in_order() -> None:
    message = errors(
        "precison: x\nmodel: Llama-3-8B\nnodes: many\nscheduling:\n  strategy: best\n  max_queue_depth: 0\n"
    )
    assert message.startswith("4 problems in cluster.yaml\n")
    assert [line.split(":")[1] for line in message.splitlines()[1:]] == ["1", "3", "5", "6"]


def test_a_long_list_of_problems_is_cut() -> None:
    message = errors("replicas:\n" + "- bad\n" * 500)
    assert message.count("\n") == 21
    assert message.endswith("and 480 more")


def test_thousands_of_replicas_are_read() -> None:
    text = "replicas:\n" + "".join(f"- http://10.0.{i >> 8}.{i & 255}:8000\n" for i in range(3072))
    assert len(parse_cluster(text).replicas()) == 3072
    cluster = parse_cluster("model: Llama-3-8B\nnodes: 256\nnum_replicas_per_node: 12")
    assert len({spec.url for spec in cluster.replicas()}) == 3072


def test_diff_names_fields_and_replicas() -> None:
    old = parse_cluster(GOOD)
    new = parse_cluster(GOOD.replace("0.85", "0.9").replace("nodes: 4", "nodes: 3") + "max_model_len: 8192\n")
    lines = diff(old, new)
    assert "scheduling.kv_cache_watermark: 0.85 -> 0.9" in lines
    assert "replica node4/r11: removed" in lines
    assert "replica node1/r0.max_model_len: 0 -> 8192" in lines
    assert diff(old, old) == []
    assert len(diff(old, parse_cluster(""))) <= 51


def _calls_of(function: Callable[..., Any], run: Callable[[], object]) -> int:
    """How often ``function`` is entered while ``run`` runs."""
    calls = 0

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code is function.__code__

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def test_diff_costs_what_changed_and_not_what_stayed() -> None:
    def of(nodes: int, replicas: int = 10) -> Cluster:
        return parse_cluster(f"model: Llama-3.1-8B\nnodes: {nodes}\nnum_replicas_per_node: {replicas}\n")

    assert _calls_of(show.effective, lambda: diff(of(100), of(101))) == 0
    slower = parse_cluster("model: Llama-3.1-8B\nnodes: 100\nnum_replicas_per_node: 10\ndecode_step: 9ms\n")
    assert _calls_of(show.effective, lambda: diff(of(100), slower)) < 5000  # of 1,000 replicas' 14 values
    assert diff(of(100), slower)[0] == "replica node1/r0.decode_step: 0s -> 9ms"
    assert diff(of(100), slower)[-1] == "and 950 more"


def test_diff_names_what_only_one_of_the_files_has() -> None:
    found = parse_cluster("discovery: {consul: {service: vllm, servers: ['http://127.0.0.1:8500']}}")
    (added,) = diff(parse_cluster(""), found)
    assert added.startswith("discovery.consul: None -> {")
    assert "'service': 'vllm'" in added
    (removed,) = diff(found, parse_cluster(""))
    assert removed.startswith("discovery.consul: {")
    assert removed.endswith(" -> None")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_cluster(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        load_cluster(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01\xd8")
    with pytest.raises(ConfigError, match="not a text file in UTF-8"):
        load_cluster(tmp_path / "binary.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_cluster("a\0b")


def ids(text: str) -> list[str]:
    return [spec.id for spec in parse_cluster(text).replicas()]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("{model: m, version: v1}", "{model: m, version: v2, base_port: 9001}", ["m-v1/node1/r0", "m-v2/node1/r0"]),
        (
            "{model: m, prompt_length: short}",
            "{model: m, prompt_length: long, base_port: 9001}",
            ["m-short/node1/r0", "m-long/node1/r0"],
        ),
        ("{model: m}", "{model: m, base_port: 9001}", ["m-1/node1/r0", "m-2/node1/r0"]),
        ("{model: m, name: a}", "{model: m, base_port: 9001}", ["a/node1/r0", "m/node1/r0"]),
        ("{model: m}", "{model: n, base_port: 9001}", ["m/node1/r0", "n/node1/r0"]),
        ("{model: m, version: v1}", "{model: m, version: v1, base_port: 9001}", ["m-v1-1/node1/r0", "m-v1-2/node1/r0"]),
    ],
)
def test_replicas_of_several_pools_have_ids_of_their_own(first: str, second: str, expected: list[str]) -> None:
    text = "pools:\n" + "".join(f"  - {pool[:-1]}, engine: 'null'}}\n" for pool in (first, second))
    assert ids(text) == expected
    assert ids(to_yaml(parse_cluster(text))) == expected


def test_a_pool_alone_needs_no_name_and_may_have_one() -> None:
    assert ids("model: m\nengine: 'null'") == ["node1/r0"]
    assert ids("model: m\nengine: 'null'\nname: p") == ["p/node1/r0"]


def test_replicas_that_run_beside_change_no_id_of_those_that_are_started() -> None:
    beside = "pools:\n  - {model: m, engine: 'null'}\n  - {replicas: ['http://h:1']}\n"
    assert ids(beside) == ["node1/r0", "h:1"], "a gateway that is told of more by a flag, and agents that are not"


def test_ipv6_addresses_of_nodes_replicas_and_ports() -> None:
    text = """\
model: m
engine: "null"
nodes: [{name: a, address: "::1"}, {name: b, address: "fd00::2"}]
gateway: {host: "::1", admin_host: "::1"}
agents: {enabled: true, host: "::1", gateways: ["[::1]:8901"]}
"""
    assert [spec.url for spec in parse_cluster(text).replicas()] == ["http://[::1]:8001", "http://[fd00::2]:8001"]
    (spec,) = parse_cluster('replicas: ["http://[fd00::2]:8001"]').replicas()
    assert (spec.id, spec.url) == ("[fd00::2]:8001", "http://[fd00::2]:8001")
    assert "is also the address of" in errors('replicas: ["http://[fd00::2]:8001", "http://[fd00:0::2]:8001"]')
    assert "without brackets" in errors('model: m\nengine: "null"\nnodes: [{name: a, address: "[::1]"}]')


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML was built without libyaml")
def test_a_large_file_is_read_by_libyaml_and_each_class_looked_at_once() -> None:
    """Both together make a file of nine megabytes a matter of seconds."""
    entries = "".join(
        f"  - {{url: 'http://10.0.{i >> 8}.{i & 255}:8001', id: r{i}, weight: 1.0}}\n" for i in range(300)
    )
    assert _calls_of(convert.fields_of, lambda: parse_cluster(f"replicas:\n{entries}")) < 30
    assert _calls_of(yaml.SafeLoader.get_event, lambda: parse_cluster(f"replicas:\n{entries}")) == 0
