"""An emulator in the test's own loop, with every engine's invariants checked at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from exaserve.emulator.config import EmulatorConfig
from exaserve.emulator.server import Emulator

Start = Callable[..., Awaitable[Emulator]]


@pytest_asyncio.fixture
async def start() -> AsyncIterator[Start]:
    """``await start(replicas=2, …)``: an open emulator on free ports, fast unless the test says otherwise."""
    opened: list[Emulator] = []

    async def run(**changes: object) -> Emulator:
        defaults: dict[str, object] = {"model": "tiny", "hardware": "cpu-tiny", "port": 0, "max_model_len": 2048}
        emulator = Emulator(EmulatorConfig(**(defaults | changes)))  # type: ignore[arg-type]
        await emulator.open()
        opened.append(emulator)
        return emulator

    yield run
    for emulator in opened:
        for replica in emulator.replicas:
            replica.engine.validate()
        emulator.close()


@pytest.fixture
def chat() -> Callable[..., dict[str, object]]:
    """A chat request's body."""

    def body(text: str = "hello there", **more: object) -> dict[str, object]:
        return {"model": "tiny", "messages": [{"role": "user", "content": text}], **more}

    return body
