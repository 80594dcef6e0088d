"""What the gateway learns of a model from answers' ``usage``: bytes per token, answer length, whether caching works."""

from __future__ import annotations

__all__ = ["ModelStats", "PrefillRate"]

_BYTES_PER_TOKEN = 4.0
"""Start value; English text on common tokenizers has 3.5 to 4.5 (published for GPT and Llama vocabularies)."""
_OUTPUT_TOKENS = 200.0
"""Start value for answers without a known bound; public chat traces have means of 100 to 300."""
_STEP = 0.05
"""Weight of one new observation: about the last 40 answers count."""


class PrefillRate:
    """Prompt tokens per second of prefill, from observations that fade; starts from an assumption.

    A replica's own rate leans on its peers' (``prior``), so that one that has served nothing yet is taken to be as
    fast as they are: it would otherwise never be tried while a peer has proved faster than the default.

    Args:
        prior: the rate to assume, tokens/s, or the peers' rate.
        prior_s: weight of the prior, in seconds of observation.
        window_s: seconds of observation after which an observation has lost half its weight.
    """

    __slots__ = ("_prior", "_prior_s", "_seconds", "_tokens", "_window_s")

    def __init__(self, prior: float | PrefillRate, prior_s: float, window_s: float) -> None:
        self._prior = prior
        self._prior_s = prior_s
        self._window_s = window_s
        self._tokens = 0.0
        self._seconds = 0.0

    def observe(self, tokens: int, took_s: float) -> None:
        keep = 0.5 ** min(took_s / self._window_s, 60.0)
        self._tokens = self._tokens * keep + tokens
        self._seconds = self._seconds * keep + took_s
        if isinstance(self._prior, PrefillRate):
            self._prior.observe(tokens, took_s)

    @property
    def value(self) -> float:
        """Tokens per second, between 1 and 1e9."""
        prior = self._prior.value if isinstance(self._prior, PrefillRate) else self._prior
        rate = (self._tokens + prior * self._prior_s) / max(self._seconds + self._prior_s, 1e-6)
        return min(max(rate, 1.0), 1e9)


class ModelStats:
    """Running means for one model; each observation moves them by a fixed share."""

    __slots__ = ("bytes_per_token", "cache_trust", "output_tokens", "prompt_tokens")

    def __init__(self) -> None:
        self.bytes_per_token = _BYTES_PER_TOKEN
        self.output_tokens = _OUTPUT_TOKENS
        self.prompt_tokens = 512.0
        self.cache_trust = 1.0
        """Share of the predicted prefix hits that engines confirmed, 0..1."""

    def placed(self, prompt_tokens: int) -> None:
        self.prompt_tokens += _STEP * (prompt_tokens - self.prompt_tokens)

    def observe(self, prompt_bytes: int, prompt_tokens: int, completion_tokens: int) -> None:
        """Learn from one answer. Prompts under 200 bytes are left out: the chat template outweighs them."""
        if prompt_bytes >= 200 and prompt_tokens > 0:
            ratio = min(max(prompt_bytes / prompt_tokens, 0.5), 16.0)
            self.bytes_per_token += _STEP * (ratio - self.bytes_per_token)
        if completion_tokens > 0:
            self.output_tokens += _STEP * (completion_tokens - self.output_tokens)

    def observe_cache(self, predicted_tokens: int, cached_tokens: int) -> None:
        """Learn how far to believe the prefix index, from an answer that says how much was cached."""
        share = min(cached_tokens / predicted_tokens, 1.0)
        self.cache_trust += _STEP * (share - self.cache_trust)
