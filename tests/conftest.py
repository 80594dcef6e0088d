"""For all tests: uvloop, as in production, and an async test fails when code of ours blocks its event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import uvloop
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings

# Workers share cores, so a slow example is not a failed one; and every machine sees the same examples.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("house")


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], object]]:
    return {"uvloop": uvloop.new_event_loop}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A green run in which nothing was tried against a real engine says so."""
    skipped = [each for each in terminalreporter.getreports("skipped") if "tests/real_vllm/" in each.nodeid]
    if skipped:
        why = str(skipped[0].longrepr[2]).removeprefix("Skipped: ")
        terminalreporter.section("not tested against a real vLLM", sep="=", yellow=True, bold=True)
        terminalreporter.line(f"{len(skipped)} tests did not run: {why}")


@pytest.fixture(autouse=True, scope="session")
def _state_is_the_tests_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Gateways that tests start keep nothing in the user's own folders, and find nothing there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def _loop_is_never_blocked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Only calls that come from ``exaserve`` count: a test may read its own files."""
    if request.node.get_closest_marker("asyncio") is None or request.node.get_closest_marker("may_block") is not None:
        yield
        return
    with blockbuster_ctx("exaserve"):
        yield
