"""``real_vllm``: the URL of a real vLLM, one for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.real_vllm.server import Unavailable, serving


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/real_vllm" in item.path.as_posix():
            item.add_marker(pytest.mark.slow)
            # The first one also waits for installation and start.
            item.add_marker(pytest.mark.timeout(480))


@pytest.fixture(scope="session")
def real_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        with serving(tmp_path_factory.mktemp("vllm")) as url:
            yield url
    except Unavailable as reason:
        pytest.skip(f"no real vLLM: {reason}")
