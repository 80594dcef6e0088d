# compiled
"""What the gateway learns of a model from answers' ``usage``: bytes per token, answer length, whether caching works."""

from __future__ import annotations

__all__ = ["ModelStats", "PrefillModel", "Speed"]

_BYTES_PER_TOKEN = 4.0
"""Start value; English text on common tokenizers has 3.5 to 4.5 (published for GPT and Llama vocabularies)."""
_OUTPUT_TOKENS = 200.0
"""Start value for answers without a known bound; public chat traces have means of 100 to 300."""
_STEP = 0.05
"""Weight of one new observation: about the last 40 answers count."""
_FIT_EVERY = 8
"""Observations between two fits, a power of two; reports come several times a second and refresh each replica too."""


class PrefillModel:
    """Seconds of prefill for a prompt of T tokens, ``a T + b T^2``, fitted to what replicas of one kind showed.

    The linear part is the layers' matrix work, the square is attention. Without it a prompt of 12,842 tokens is
    believed done a fifth too early and short prompts are sent behind it. Least squares with weight 1/T (so that the
    sum of all predictions equals the sum of all observations), from sums that fade. The start is an assumed rate.

    Args:
        tokens_per_s: rate to assume before anything was observed.
        prior_s: weight of that assumption, seconds of observed prefill.
        window_s: seconds of observed prefill after which an observation has lost half its weight.
    """

    __slots__ = (
        "_cubes",
        "_seconds",
        "_squares",
        "_sums",
        "_tokens",
        "_unfitted",
        "_weighted",
        "_window_s",
        "a",
        "b",
        "fits",
    )

    def __init__(self, tokens_per_s: float, prior_s: float, window_s: float) -> None:
        self.fits = 0
        """Fits so far."""
        self._window_s = window_s
        prior_tokens = prior_s * tokens_per_s
        # As if prompts of 1,000 tokens had taken 1000 / tokens_per_s each, for prior_s in all.
        self._sums = [prior_tokens, prior_tokens * 1e3, prior_tokens * 1e6, prior_s, prior_s * 1e3]
        # What was observed since the last fit: one attribute each, which is cheaper than a list where it is compiled.
        self._tokens = self._squares = self._cubes = self._seconds = self._weighted = 0.0
        self.a = 1.0 / tokens_per_s
        self.b = 0.0
        self._unfitted = 0

    def seconds(self, tokens: float) -> float:
        return tokens * (self.a + self.b * tokens)

    def observe(self, tokens: int, took_s: float) -> None:
        """Take an observation; every eighth moves the fit (it is read far more often than it changes)."""
        size = float(tokens)
        square = size * size
        self._tokens += size
        self._squares += square
        self._cubes += square * size
        self._seconds += took_s
        self._weighted += size * took_s
        self._unfitted += 1
        if self._unfitted >= _FIT_EVERY:
            self.fit()

    def fit(self) -> None:
        """Recompute ``a`` and ``b`` from what was observed."""
        self._unfitted = 0
        self.fits += 1
        keep = 0.5 ** min(self._seconds / self._window_s, 60.0)
        new = (self._tokens, self._squares, self._cubes, self._seconds, self._weighted)
        self._sums = t1, t2, t3, y, ty = [old * keep + fresh for old, fresh in zip(self._sums, new, strict=True)]
        self._tokens = self._squares = self._cubes = self._seconds = self._weighted = 0.0
        spread = t1 * t3 - t2 * t2
        b = (t1 * ty - t2 * y) / spread if spread > 1e-3 * t1 * t3 else self.b
        # Neither part is negative; where the fit says so, the other one carries all.
        b = min(max(b, 0.0), y / t2 if t2 else 0.0)
        self.b = b
        self.a = max((y - b * t2) / t1, 1e-9)


class Speed:
    """One replica's prefill time as a multiple of its peers' model, from its own observations, which fade."""

    __slots__ = ("_believed_s", "_prior_s", "_took_s", "_unread", "_window_s", "model")

    def __init__(self, model: PrefillModel, prior_s: float, window_s: float) -> None:
        self.model = model
        self._prior_s = prior_s
        self._window_s = window_s
        self._took_s = 0.0
        self._believed_s = 0.0
        self._unread = 0

    def observe(self, tokens: int, took_s: float) -> bool:
        """A prompt's prefill took ``took_s``; short prompts that share a step show up as next to nothing, and that
        is right in sum. Returns whether it is time to read :attr:`factor` again."""
        self._took_s += took_s
        self._believed_s += self.model.seconds(tokens)
        self.model.observe(tokens, took_s)
        self._unread += 1
        if self._took_s > self._window_s:
            # Fading in halves costs nothing per observation and keeps between one and two windows' worth.
            self._took_s *= 0.5
            self._believed_s *= 0.5
        return self._unread & (_FIT_EVERY - 1) == 1

    @property
    def version(self) -> int:
        """Another number whenever :attr:`factor` or the peers' model may have changed."""
        return self._unread + self.model.fits

    @property
    def factor(self) -> float:
        """1 is as fast as the peers, 2 takes twice as long; between 1/1000 and 1000."""
        ratio = (self._took_s + self._prior_s) / (self._believed_s + self._prior_s)
        return min(max(ratio, 1e-3), 1e3)


class ModelStats:
    """Running means for one model; each observation moves them by a fixed share."""

    __slots__ = ("bytes_per_token", "cache_trust", "output_tokens", "prompt_tokens", "work_s")

    def __init__(self) -> None:
        self.bytes_per_token = _BYTES_PER_TOKEN
        self.output_tokens = _OUTPUT_TOKENS
        self.prompt_tokens = 512.0
        self.work_s = 0.0
        """Mean prefill time of a request, seconds."""
        self.cache_trust = 1.0
        """Share of the predicted prefix hits that engines confirmed, 0..1."""

    def placed(self, prompt_tokens: int, work_s: float) -> None:
        self.prompt_tokens += _STEP * (prompt_tokens - self.prompt_tokens)
        self.work_s += _STEP * (work_s - self.work_s)

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
