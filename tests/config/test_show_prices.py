"""Prices and limits in what ``config show`` prints and a local cluster is started with."""

from __future__ import annotations

from exaserve.config import parse_cluster, to_yaml
from exaserve.control.records import LimitRule, Price

TEXT = """
replicas: [http://127.0.0.1:1]
limits: [{tenant: '*', tokens_per_minute: 5}]
prices: {llama-*: {input: 1.5, output: 3}}
"""


def test_they_come_back_as_they_were() -> None:
    cluster = parse_cluster(to_yaml(parse_cluster(TEXT)))
    assert cluster.limits == (LimitRule(tenant="*", tokens_per_minute=5),)
    assert cluster.prices == {"llama-*": Price(input=1.5, output=3.0)}
