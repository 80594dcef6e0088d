"""How long a prompt is to the server: words of known length by its own tokenizer, so that lengths are exact.

Tokenizers split at spaces, so the tokens of a text of words are the sum over its words. Words are measured (by the
server's ``/tokenize`` or a local ``tokenizer.json``), those of equal length become the vocabulary, and a whole prompt
of each length is counted once to prove it.
"""

from __future__ import annotations

import contextlib
import importlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from exaserve.domain.errors import ConfigError
from exaserve.workload import BodyRenderer, PlannedRequest, Words

__all__ = ["Lengths", "ServerTokenizer", "find_words", "local_counter", "measure_lengths"]

Count = Callable[[str], int]
TIMEOUT_S = 10.0
_VOCABULARY_MIN = 8
_REPEAT = 8
_COMMON = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they "
    "which one you were all her she there would their we him been has when who will no more if out so up said "
    "what its about than into them can only other time new some could these two may first then do any like my now "
    "over such our man me even most made after also did many off before must well back through years where much "
    "your way down should because long each just state people those too good world make very year still see own "
    "work men day get here old life both between being under three never know same last another while us might "
    "great go come since against right came take "
)
"""English words that most tokenizers hold whole."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """How prompts get their length.

    Attributes:
        words: vocabulary, None where lengths are estimated.
        overhead_tokens: what the server's template adds to a prompt.
        error_tokens: largest difference found when whole prompts were counted; None where they could not be.
        how: for people.
    """

    words: Words | None
    overhead_tokens: int
    error_tokens: int | None
    how: str


class ServerTokenizer:
    """``/tokenize`` of vLLM, SGLang or llama.cpp.

    Args:
        url: of the server; its root, not ``/v1``.
        model: sent along, as vLLM wants it.
    """

    def __init__(self, url: str, model: str, headers: Mapping[str, str] | None = None, *, verify: bool = True) -> None:
        self._url = url.rstrip("/").removesuffix("/v1") + "/tokenize"
        self._model = model
        self._client = httpx.Client(timeout=TIMEOUT_S, headers=dict(headers or {}), verify=verify)

    def count(self, text: str) -> int:
        """Tokens of a text by itself. ConfigError where the server does not tell."""
        # Each server reads its own names: vLLM and SGLang "prompt", llama.cpp "content".
        return self._ask({"model": self._model, "prompt": text, "content": text, "add_special_tokens": False})

    def count_chat(self, text: str) -> int:
        """Tokens of a prompt with one user message. ConfigError where the server does not tell."""
        messages = [{"role": "user", "content": text}]
        return self._ask({"model": self._model, "messages": messages, "add_generation_prompt": True})

    def _ask(self, body: dict[str, Any]) -> int:
        try:
            response = self._client.post(self._url, json=body)
            document = response.json()
            if response.status_code == 200 and isinstance(document, dict):
                if isinstance(document.get("count"), int):
                    return int(document["count"])
                if isinstance(document.get("tokens"), list):
                    return len(document["tokens"])
        except (httpx.HTTPError, ValueError) as error:
            raise ConfigError(f"{self._url}: {type(error).__name__}: {error}") from None
        raise ConfigError(f"{self._url} does not count tokens (HTTP {response.status_code})")

    def close(self) -> None:
        self._client.close()


def local_counter(path: str) -> Count:
    """Counts with a ``tokenizer.json`` of this machine.

    Raises:
        ConfigError: the file cannot be read, or the package ``tokenizers`` is not installed.
    """
    try:
        tokenizers = importlib.import_module("tokenizers")
    except ImportError:
        raise ConfigError(
            "--tokenizer needs the package tokenizers: pip install tokenizers", param="tokenizer"
        ) from None
    try:
        tokenizer = tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # noqa: BLE001 -- the package raises plain Exception
        raise ConfigError(f"--tokenizer {path}: {error}", param="tokenizer") from None
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def find_words(count: Count) -> Words:
    """Words that all become the same number of tokens.

    Raises:
        ConfigError: the tokenizer gives no two words of one length, or its words do not add up.
    """
    candidates = _COMMON.split()
    base = count("the")
    if count("the " + " ".join(candidates)) - base == len(candidates):
        return Words(tuple(candidates), lead="the", lead_tokens=base)
    sizes: dict[str, int] = {}
    for word in candidates:
        tokens, rest = divmod(count("the" + f" {word}" * _REPEAT) - base, _REPEAT)
        if rest == 0 and tokens > 0:
            sizes[word] = tokens
    groups = Counter(sizes.values())
    chosen = min((size for size, n in groups.items() if n >= _VOCABULARY_MIN), default=0)
    if not chosen:
        raise ConfigError("the tokenizer gives too few words of equal length; lengths will be estimated")
    spare: dict[int, str] = {}
    for word in ("a", "I", "x", *sizes):
        tokens, rest = divmod(count("the" + f" {word}" * _REPEAT) - base, _REPEAT)
        if rest == 0 and 0 < tokens < chosen:
            spare.setdefault(tokens, word)
        if len(spare) == chosen - 1:
            break
    words = tuple(w for w, size in sizes.items() if size == chosen)
    return Words(words, chosen, tuple(sorted(spare.items())), "the", base)


def measure_lengths(
    count: Count, lengths: Sequence[int], path: str, count_chat: Count | None = None, source: str = "/tokenize"
) -> Lengths:
    """A vocabulary, the template's overhead, and how exact prompts of ``lengths`` tokens are.

    Args:
        count_chat: counts a prompt with its template; without it chat prompts count as their text.
    """
    words = find_words(count)
    renderer = BodyRenderer("m", path=path, words=words)
    chat = path == "/v1/chat/completions"

    def prompt(tokens: int, overhead: int) -> str:
        renderer.overhead_tokens = overhead
        return renderer.text(PlannedRequest(0, "", 0.0, tokens, 1, 0x123456789ABCDEF))

    sample = prompt(64, 0)
    overhead, known = 0, not chat
    if chat and count_chat is not None:
        with contextlib.suppress(ConfigError):
            overhead, known = count_chat(sample) - count(sample), True
    counter = count_chat if chat and known and count_chat is not None else count
    errors = [abs(counter(prompt(n, overhead)) - n) for n in sorted(set(lengths)) if n > overhead + 8]
    error = max(errors, default=None)
    how = f"by {source}, " + (
        "exact" if error == 0 else f"within {error} tokens" if error is not None else "not checked"
    )
    if not known:
        how += "; what the chat template adds is not known and comes on top"
    return Lengths(words, max(0, overhead), error, how)
