"""What an engine on given hardware does, in a handful of numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from exaserve.perfmodel.step import step_s

__all__ = ["EngineProfile"]


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """What an engine on given hardware does, in a handful of numbers that the planner, emulator, simulator and
    entropy share.

    Attributes:
        prefill_tokens_per_s: tokens per second that the matrices compute, attention apart.
        decode_fixed_s: one decode step of an empty context, seconds: weights read once, and overhead.
        decode_per_seq_s: added per sequence in the batch, seconds.
        decode_per_kv_token_s: added per token of context of the decoding sequences, seconds.
        kv_tokens_max: KV cache capacity, tokens.
        kv_bytes_per_token: KV cache per token over all ranks of the replica, bytes.
        max_num_seqs: sequences in the batch at most.
        token_budget: tokens (prompt and decode) per step at most.
        max_model_len: longest prompt + output, tokens.
        block_size: tokens per KV block.
        prefill_per_pair_s: seconds per (prompt token, context token) pair that attention looks at.
        overhead_s: part of ``decode_fixed_s`` that is not reading weights, seconds.
        expert_s: time to read all routed experts, seconds (mixture of experts; not in ``decode_fixed_s``).
        expert_share: share of the experts that one token takes.
        overlap: of computing and reading weights in one step, how much of the shorter is not hidden by the longer.
        prompt_s: added to a step that computes prompts, seconds: it is launched kernel by kernel, not as a graph.
        first_s: of every first token besides its steps, seconds: HTTP, tokenising, scheduling.
        load_s: from start to ready, seconds: weights read, graphs captured.
    """

    prefill_tokens_per_s: float
    decode_fixed_s: float
    decode_per_seq_s: float
    decode_per_kv_token_s: float
    kv_tokens_max: int
    kv_bytes_per_token: float
    max_num_seqs: int = 256
    token_budget: int = 8192
    max_model_len: int = 8192
    block_size: int = 16
    prefill_per_pair_s: float = 0.0
    overhead_s: float = 0.0
    expert_s: float = 0.0
    expert_share: float = 0.0
    overlap: float = 0.0
    prompt_s: float = 0.0
    first_s: float = 0.0
    load_s: float = 30.0

    def step_s(self, prefill_tokens: float, decode_seqs: float, kv_tokens: float, prefill_pairs: float = 0.0) -> float:
        """Duration of one step, seconds.

        Args:
            prefill_tokens: prompt tokens computed in this step.
            decode_seqs: sequences that get one token each.
            kv_tokens: sum of the decoding sequences' context lengths.
            prefill_pairs: sum over prompt tokens of the context each looks at (token count squared / 2 for a whole
                prompt).
        """
        return step_s(
            self.decode_fixed_s,
            self.overhead_s,
            self.decode_per_seq_s,
            self.decode_per_kv_token_s,
            self.expert_s,
            self.expert_share,
            self.prefill_tokens_per_s,
            self.prefill_per_pair_s,
            self.overlap,
            self.prompt_s,
            prefill_tokens,
            decode_seqs,
            kv_tokens,
            prefill_pairs,
        )

    def prefill_s(self, tokens: float, decode_seqs: float = 0.0, kv_tokens: float = 0.0) -> float:
        """Seconds of the steps that compute a prompt of ``tokens``, chunked by the token budget, while ``decode_seqs``
        others with ``kv_tokens`` of context decode.
        """
        steps = max(1, -(-int(tokens) // max(1, self.token_budget - int(decode_seqs))))
        return steps * self.step_s(tokens / steps, decode_seqs, kv_tokens, 0.5 * tokens * tokens / steps)

    def first_token_s(self, tokens: float) -> float:
        """Seconds to the first token of a prompt of ``tokens`` that has the replica to itself."""
        return self.first_s + self.prefill_s(tokens)

    def slower(self, factor: float) -> EngineProfile:
        """The profile of an engine whose every step, and all else, takes ``factor`` times as long."""
        return replace(
            self,
            prefill_tokens_per_s=self.prefill_tokens_per_s / factor,
            decode_fixed_s=self.decode_fixed_s * factor,
            decode_per_seq_s=self.decode_per_seq_s * factor,
            decode_per_kv_token_s=self.decode_per_kv_token_s * factor,
            prefill_per_pair_s=self.prefill_per_pair_s * factor,
            overhead_s=self.overhead_s * factor,
            expert_s=self.expert_s * factor,
            prompt_s=self.prompt_s * factor,
            first_s=self.first_s * factor,
        )

    def validate(self) -> None:
        """Asserts that every figure is usable."""
        assert self.prefill_tokens_per_s > 0
        assert self.decode_fixed_s >= self.overhead_s >= 0
        assert min(self.decode_per_seq_s, self.decode_per_kv_token_s, self.prefill_per_pair_s, self.expert_s) >= 0
        assert min(self.overlap, self.first_s, self.prompt_s) >= 0
        assert 1 <= self.max_num_seqs <= self.token_budget
        assert self.block_size >= 1
        assert self.block_size <= self.max_model_len <= self.kv_tokens_max
