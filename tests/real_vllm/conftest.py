"""``live``: two real vLLM replicas with agent and gateway, one set-up for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.real_vllm.live import Live
from tests.real_vllm.live import live as starting
from tests.real_vllm.server import Unavailable


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/real_vllm" in item.path.as_posix():
            item.add_marker(pytest.mark.slow)
            # The first one also waits for installation and start.
            item.add_marker(pytest.mark.timeout(720))


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    try:
        with starting(tmp_path_factory.mktemp("vllm")) as made:
            yield made
    except Unavailable as reason:
        pytest.skip(f"no real vLLM: {reason}")


@pytest.fixture(scope="session")
def real_vllm(live: Live) -> str:
    """URL of one engine, that no test ends."""
    return live.engines[0]
