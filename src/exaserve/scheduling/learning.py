"""What the gateway learns of a model from answers' ``usage``: bytes per token, answer length, whether caching works."""

from __future__ import annotations

__all__ = ["ModelStats"]

_BYTES_PER_TOKEN = 4.0
"""Start value; English text on common tokenizers has 3.5 to 4.5 (published for GPT and Llama vocabularies)."""
_OUTPUT_TOKENS = 200.0
"""Start value for answers without a known bound; public chat traces have means of 100 to 300."""
_STEP = 0.05
"""Weight of one new observation: about the last 40 answers count."""


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
