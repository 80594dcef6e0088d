"""What answers like vLLM without accelerators: the emulator, and engines that compute nothing (``null``)."""

from __future__ import annotations

from dataclasses import replace

from exaserve.engines.vllm import VLLM

__all__ = ["EMULATOR", "NULL"]

EMULATOR = replace(VLLM, name="emulator", launch=None, accelerators=False)
NULL = replace(EMULATOR, name="null")
