"""Command lines of engines that no cluster file asks for yet."""

from __future__ import annotations

from exaserve.engines import ENGINES
from exaserve.engines.base import LaunchRequest


def test_sglang_as_one_half_of_a_pair() -> None:
    launch = ENGINES["sglang"].launch
    assert launch is not None
    asked = LaunchRequest(
        model="m", served_name="m", host="h", port=1, kv_connector="mooncake", kv_role="kv_producer", side_port=20_000
    )
    argv = " ".join(launch(asked).argv)
    assert "--disaggregation-mode prefill --disaggregation-transfer-backend mooncake" in argv
    assert "--disaggregation-bootstrap-port 20001" in argv
