"""What to do about an engine that ended or hangs: pure decisions with their reasons."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Diagnosis", "HangWatch", "Restart", "RestartPolicy", "alarming", "diagnose", "telling"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What an engine's last lines say.

    Attributes:
        cause: short name, "" where nothing known was found.
        line: the line that says so.
        hopeless: whether another start would end the same way.
    """

    cause: str = ""
    line: str = ""
    hopeless: bool = False


_SIGNS: tuple[tuple[str, bool, re.Pattern[str]], ...] = tuple(
    (cause, hopeless, re.compile(pattern, re.IGNORECASE))
    for cause, hopeless, pattern in (
        (
            "damaged weights",
            True,
            (
                r"SafetensorError|HeaderTooLarge|HeaderTooSmall|InvalidHeader|MetadataIncompleteBuffer"
                r"|incomplete metadata|PytorchStreamReader failed|failed finding central directory|invalid magic"
                r"|data is not within|size mismatch for|checksum|corrupt|UnpicklingError|gguf_init_from_file.*fail"
                r"|error loading model"
            ),
        ),
        (
            "weights are not there",
            True,
            (
                r"Repository Not Found|does not appear to have a file named|no file named .*safetensors"
                r"|is not a local folder and is not a valid model identifier"
                r"|(?:model|weights).*No such file or directory|Cannot find any model"
            ),
        ),
        (
            "wrong arguments",
            True,
            (
                r"error: unrecognized arguments|error: argument --|invalid argument: |usage: .*\[-h\]"
                r"|does not match the quantization method|is greater than the derived max_model_len"
                r"|\bValue error, |No such option: |Invalid value for |Missing (?:option|argument) "
                r"|Got unexpected extra argument"
            ),
        ),
        ("program not found", True, r": No such file or directory$|command not found|No module named"),
        (
            "out of accelerator memory",
            False,
            (
                r"CUDA out of memory|OutOfMemoryError|HIP out of memory|No available memory"
                r"|larger than the available KV cache memory"
            ),
        ),
        ("port in use", False, r"address already in use|EADDRINUSE|couldn't bind"),
        ("NCCL", False, r"NCCL (?:error|WARN|timeout)|ncclUnhandled|ncclSystemError|watchdog.*timeout"),
        (
            "accelerator lost",
            False,
            r"Xid|device-side assert|uncorrectable ECC|fallen off the bus|no CUDA-capable device",
        ),
        ("engine process died", False, r"died unexpectedly|EngineDeadError|EngineCore encountered a fatal error"),
    )
)
_ALARM = re.compile(
    r"died unexpectedly|EngineDeadError|EngineCore encountered a fatal error|Scheduler hit an exception"
)
"""Lines after which vLLM's or SGLang's front end answers, for seconds, for an engine that is no more. Engines may also
log what clients write, so such a line is a reason to ask at once, never proof."""
_NOISE = re.compile(
    r"^nanobind: |^- (?:leaked |\.\.\. skipped)|^See https?://|^For further information visit |^Error$"
    r'|"(?:GET|POST) \S+ HTTP/1\.[01]" 2\d\d'
)
_FRAME = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\u2500-\u257f]+")
"""Colours, and the boxes that command lines draw around their errors."""
_LINE_CHARS_MAX = 500
"""Of a line that are looked at: patterns over lines of 64 KiB would hold up all that an agent does for seconds."""
_WRAPPER = re.compile(r"^\(\w+ pid=\d+\)\s*")
"""vLLM puts the process before each line of it."""
_USAGE = ("exit code 2", "exit code 126", "exit code 127")
"""What programs and shells end with over a wrong command line, or one that cannot be run: no start will be better."""
_WRONG = re.compile(r"error|exception|fatal|critical|panic|abort|killed|fail", re.IGNORECASE)


def alarming(line: str) -> bool:
    """Whether the line is reason to ask the engine at once."""
    return _ALARM.search(line[:_LINE_CHARS_MAX]) is not None


def telling(lines: Iterable[str], count: int) -> list[str]:
    """The last ``count`` lines that say something is wrong; the last ones of any kind where none does."""
    said = [line[:_LINE_CHARS_MAX] for line in lines if (words := _words(line)) and not _NOISE.search(words)]
    return ([line for line in said if _WRONG.search(line)] or said)[-count:]


def _words(line: str) -> str:
    """A line without what only decorates it: colours, boxes, process ids, the arguments that pydantic repeats."""
    return _WRAPPER.sub("", _FRAME.sub("", line[:_LINE_CHARS_MAX]).strip()).partition(" [type=")[0]


def diagnose(lines: Iterable[str]) -> Diagnosis:
    """Reads an engine's last lines, newest first; the most telling sign wins."""
    newest_first = [words for line in lines if (words := _words(line))][::-1]
    for cause, hopeless, pattern in _SIGNS:
        for line in newest_first:
            if pattern.search(line):
                return Diagnosis(cause, line[:300], hopeless)
    return Diagnosis(line=next((line[:300] for line in newest_first), ""))


@dataclass(frozen=True, slots=True)
class Restart:
    """Whether to start again after a failure, and when: ``delay_s`` None is never."""

    delay_s: float | None
    reason: str


class RestartPolicy:
    """Restarts with growing pauses, and an end: an engine that will not live should not burn the node for ever.

    Args:
        restarts_max: within ``window_s``; 0 never restarts.
        backoff_s / backoff_max_s: first pause and the longest; each is twice the one before.
        window_s: failures older than this are forgotten.
    """

    def __init__(self, restarts_max: int, backoff_s: float, backoff_max_s: float, window_s: float) -> None:
        self._restarts_max = restarts_max
        self._backoff_s = backoff_s
        self._backoff_max_s = max(backoff_s, backoff_max_s)
        self._window_s = window_s
        self._failures: deque[float] = deque(maxlen=max(1, restarts_max) + 1)

    def failed(self, what: str, diagnosis: Diagnosis, was_ready: bool, now: float) -> Restart:
        """The engine ended or was ended. ``was_ready``: it had served, so its arguments and weights are good."""
        why = f"{what}: {diagnosis.cause}: {diagnosis.line}" if diagnosis.cause else what
        if not diagnosis.cause and diagnosis.line and not was_ready:
            why = f"{what}; last line: {diagnosis.line}"
        if (diagnosis.hopeless or what.endswith(_USAGE)) and not was_ready:
            return Restart(None, why)
        while self._failures and now - self._failures[0] > self._window_s:
            self._failures.popleft()
        if len(self._failures) >= self._restarts_max:
            return Restart(None, f"{why} (gave up after {len(self._failures)} restarts in {self._window_s:g} s)")
        self._failures.append(now)
        delay_s = min(self._backoff_s * 2.0 ** (len(self._failures) - 1), self._backoff_max_s)
        return Restart(delay_s, why)

    def forget(self) -> None:
        """An operator asked for a start: the past does not count."""
        self._failures.clear()


class HangWatch:
    """An engine hangs when requests run and no token comes, or when it has answered no probe, for ``hang_s``.

    What the engine says of itself cannot be the only sign: a frozen one says nothing at all.
    """

    def __init__(self, hang_s: float) -> None:
        self._hang_s = hang_s
        self._tokens: float | None = None
        self._moved_at = 0.0
        self._probed_at = 0.0

    def reset(self, now: float) -> None:
        """A new process, or one that has just become ready."""
        self._tokens = None
        self._moved_at = self._probed_at = now

    def probed_well(self, now: float) -> None:
        self._probed_at = self._moved_at = now

    def sampled(self, running: int | None, tokens_total: float | None, now: float) -> None:
        """Counters of one sample; unknown ones are no sign in either direction."""
        if tokens_total is None or tokens_total != self._tokens or not running:
            self._tokens = tokens_total
            self._moved_at = now

    def hung(self, now: float) -> str:
        """Why it counts as hanging, "" where it does not."""
        if now - self._moved_at > self._hang_s:
            return f"no token for {now - self._moved_at:.0f} s while requests run"
        if now - self._probed_at > self._hang_s:
            return f"no completion answered for {now - self._probed_at:.0f} s"
        return ""
