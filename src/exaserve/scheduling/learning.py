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
_STEP_TOKENS = 256.0
"""A prompt is learned from as if it had at least this many tokens: below, a step is bound by reading the weights (an
H100 multiplies about 300 times per byte it reads), so short prompts take as long as this and teach no rate of their
own. Otherwise ten tokens in 15 ms would predict a minute for a long prompt."""
_PAIR_MAX = 1.0 / 8192.0
"""Upper bound of ``b / a``: attention equals the matrix work at this length at the earliest. By FLOPs it is 23,000
tokens for a model of 0.5 billion parameters and 61,000 for one of 8 billion; attention kernels reach half the rate."""
_CONTRAST_MIN = 0.1
"""Spread of lengths, 0 where all prompts are equally long, below which nothing is learned of the square."""
_LONG_TOKENS = 2048.0
"""Likewise the mean length, weighted by its square: short prompts say nothing of attention."""


class PrefillModel:
    """Seconds of prefill for a prompt of T tokens, ``a T + b T^2``, fitted to what replicas of one kind showed.

    The linear part is the layers' matrix work, the square is attention. Without it a prompt of 12,842 tokens is
    believed done a fifth too early and short prompts are sent behind it. Least squares with weight 1/T (so that the
    sum of all predictions equals the sum of all observations), from sums that fade. The start is an assumed rate.

    What was learned at one length is used at all others, so it is bounded: ``b / a`` is learned only from prompts of
    different lengths of which some are long, and never above what engines can be like; ``a`` stays within ``span``
    times the assumed rate, either way.

    Args:
        tokens_per_s: rate to assume before anything was observed.
        prior_s: weight of that assumption, seconds of observed prefill.
        window_s: seconds of observed prefill after which an observation has lost half its weight.
        span: largest factor, at least 1, by which ``a`` may differ from the assumed one.
    """

    __slots__ = (
        "_assumed",
        "_cubes",
        "_pair",
        "_prior_s",
        "_prior_tokens",
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
        "span",
    )

    def __init__(self, tokens_per_s: float, prior_s: float, window_s: float, span: float) -> None:
        self.fits = 0
        """Fits so far."""
        self._window_s = window_s
        self._prior_s = prior_s
        self._prior_tokens = prior_s * tokens_per_s
        self._sums = [0.0] * 5
        # What was observed since the last fit: one attribute each, which is cheaper than a list where it is compiled.
        self._tokens = self._squares = self._cubes = self._seconds = self._weighted = 0.0
        self.a = 1.0 / tokens_per_s
        self.b = 0.0
        self.span = span
        self._assumed = self.a
        self._pair = 0.0
        self._unfitted = 0

    def seconds(self, tokens: float) -> float:
        return tokens * (self.a + self.b * tokens)

    def observe(self, tokens: float, took_s: float) -> None:
        """Take an observation; every eighth moves the fit (it is read far more often than it changes), and at the
        start the first, third and seventh."""
        size = tokens if tokens > _STEP_TOKENS else _STEP_TOKENS  # noqa: FURB136  # max() is a call
        square = size * size
        self._tokens += size
        self._squares += square
        self._cubes += square * size
        self._seconds += took_s
        self._weighted += size * took_s
        self._unfitted += 1
        if self._unfitted >= _FIT_EVERY or self._unfitted >> self.fits:
            self.fit()

    def fit(self) -> None:
        """Recompute ``a`` and ``b`` from what was observed."""
        self._unfitted = 0
        self.fits += 1
        keep = 0.5 ** min(self._seconds / self._window_s, 60.0)
        new = (self._tokens, self._squares, self._cubes, self._seconds, self._weighted)
        self._sums = t1, t2, t3, y, ty = [old * keep + fresh for old, fresh in zip(self._sums, new, strict=True)]
        # Some dozens of observations outweigh the assumption, however short: else what is left of it would be taken
        # for a difference of those that have shown something from those that have not.
        self._prior_s *= 0.5 * keep
        self._prior_tokens *= 0.5 * keep
        self._tokens = self._squares = self._cubes = self._seconds = self._weighted = 0.0
        spread = t1 * t3 - t2 * t2
        if spread > _CONTRAST_MIN * t1 * t3 and t3 > _LONG_TOKENS * t2:
            b = (t1 * ty - t2 * y) / spread
            a = (y - b * t2) / t1
            # Neither part is negative; where the fit says so, the other one carries all that it can.
            self._pair = min(max(b / a, 0.0), _PAIR_MAX) if a > 0.0 else _PAIR_MAX
        a = (y + self._prior_s) / (t1 + self._pair * t2 + self._prior_tokens)
        self.a = min(max(a, self._assumed / self.span), self._assumed * self.span)
        self.b = self._pair * self.a


class Speed:
    """One replica's prefill time as a multiple of its peers' model, from its own observations, which fade.

    The observations are kept, not what was believed of them at the time: while the model is being learned itself, a
    replica would otherwise be thought slow for its first requests and, getting no others, stay so.
    """

    __slots__ = ("_prior_s", "_squares", "_tokens", "_took_s", "_unread", "_window_s", "model")

    def __init__(self, model: PrefillModel, prior_s: float, window_s: float) -> None:
        self.model = model
        self._prior_s = prior_s
        self._window_s = window_s
        self._took_s = self._tokens = self._squares = 0.0
        self._unread = 0

    def observe(self, tokens: int, took_s: float) -> bool:
        """A prompt's prefill took ``took_s``; short prompts that share a step show up as next to nothing, and that
        is right in sum. Returns whether it is time to read :attr:`factor` again."""
        size = max(float(tokens), _STEP_TOKENS)
        self._took_s += took_s
        self._tokens += size
        self._squares += size * size
        self.model.observe(size, took_s)
        self._unread += 1
        if self._took_s > self._window_s:
            # Fading in halves costs nothing per observation and keeps between one and two windows' worth.
            self.fade()
        return self._unread & (_FIT_EVERY - 1) == 1

    def fade(self) -> None:
        """Halve the weight of all observations so far."""
        self._took_s *= 0.5
        self._tokens *= 0.5
        self._squares *= 0.5
        self._unread += _FIT_EVERY  # keeps its place among the observations, and is another version

    @property
    def version(self) -> int:
        """Another number whenever :attr:`factor` or the peers' model may have changed."""
        return self._unread + self.model.fits

    @property
    def factor(self) -> float:
        """1 is as fast as the peers, 2 takes twice as long; within the model's span."""
        model = self.model
        believed_s = model.a * self._tokens + model.b * self._squares
        ratio = (self._took_s + self._prior_s) / (believed_s + self._prior_s)
        return min(max(ratio, 1.0 / model.span), model.span)


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
