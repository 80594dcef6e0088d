"""How caches are cut: heads, latents, windows, states, stages."""

from __future__ import annotations

import pytest

from exaserve.models import model_from_config, model_from_name
from exaserve.perfmodel import HARDWARE
from exaserve.planning import MeasuredMemory, MemoryRequest, Parallelism, parse_engine, plan_memory
from exaserve.planning.engine import EngineVersion
from exaserve.planning.kvcache import KvLayout, kv_layout

NEW = parse_engine("0.24.0")
OLD = parse_engine("0.10.2")


def layout(name: str, tp: int = 1, pp: int = 1, version: EngineVersion = OLD, **more: float) -> KvLayout:
    return kv_layout(model_from_name(name), Parallelism(tp, pp), version, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "tp", "per_token"),
    [
        ("Llama-3.1-8B", 1, 2 * 32 * 8 * 128 * 2),
        ("Llama-3.1-8B", 8, 2 * 32 * 1 * 128 * 2),
        # Four heads over eight ranks: one each, repeated; a rank's share stops shrinking.
        ("Qwen3-235B-A22B", 4, 2 * 94 * 128 * 2),
        ("Qwen3-235B-A22B", 8, 2 * 94 * 128 * 2),
        # Multi-head attention takes four times what eight heads of 32 would.
        ("Qwen1.5-7B", 1, 2 * 32 * 32 * 128 * 2),
        # Latents: 576 values, no factor 2, the same on every rank.
        ("DeepSeek-V3", 1, 576 * 61 * 2),
        ("DeepSeek-V3", 16, 576 * 61 * 2),
        ("Kimi-K2", 8, 576 * 61 * 2),
    ],
)
def test_bytes_per_token_on_a_rank(name: str, tp: int, per_token: int) -> None:
    assert layout(name, tp).bytes_per_token() == per_token


def test_fp8_weights_do_not_mean_an_fp8_cache() -> None:
    assert layout("Qwen/Qwen3-8B-FP8").bytes_per_token() == layout("Qwen/Qwen3-8B").bytes_per_token()
    assert (
        layout("Qwen/Qwen3-8B-FP8", value_bytes=1.0).bytes_per_token() == layout("Qwen/Qwen3-8B").bytes_per_token() / 2
    )


def test_windows_share_blocks_with_full_layers() -> None:
    # Gemma 3 27B: 52 windowed and 10 full layers: groups of 10, one full and six windowed (the last padded).
    cut = layout("Gemma-3-27B")
    assert [len(g.indices) for g in cut.groups if g.cache.kind == "full"] == [10]
    assert len([g for g in cut.groups if g.cache.kind == "sliding"]) == 6
    assert sum(len(g.indices) for g in cut.groups) == 62
    # gpt-oss: 18 and 18, two groups.
    assert [len(g.indices) for g in layout("gpt-oss-120b").groups] == [18, 18]


def test_before_grouping_windows_cost_as_much_as_full_layers() -> None:
    assert len(layout("Gemma-3-27B", version=parse_engine("0.8.5")).groups) == 1
    assert layout("Gemma-3-27B", version=parse_engine("0.8.5")).bytes_per_token() == 2 * 62 * 16 * 128 * 2


def test_nearly_equal_counts_are_padded_instead_of_split() -> None:
    # gpt-oss-20b has 12 and 12; a draft layer more on one side makes 13, not 12 + 24.
    config = {
        "model_type": "gpt_oss",
        "num_hidden_layers": 25,
        "layer_types": ["sliding_attention"] * 12 + ["full_attention"] * 13,
        "hidden_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 201_088,
        "sliding_window": 128,
        "intermediate_size": 2880,
        "max_position_embeddings": 131_072,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
    }
    cut = kv_layout(model_from_config(config), Parallelism(), OLD)
    assert len(cut.groups) == 2
    assert cut.stage_bytes[0] == 13 * 2 * 8 * 64 * 2 * 16


def test_a_block_of_attention_grows_to_hold_a_state() -> None:
    # Qwen3.5-122B over two ranks: a state of 2,146,304 B with a draft slot less; 1,024 B a token and layer.
    cut = layout("Qwen3.5-122B-A10B", tp=2, version=NEW)
    states = [g for g in cut.groups if g.cache.kind == "state"]
    assert cut.block % 16 == 0
    assert all(g.page_bytes >= g.cache.state_bytes(2) for g in states)
    assert len({g.page_bytes for g in cut.groups}) == 1
    assert len(states) == 3
    assert len(cut.groups) == 4


def test_unequal_pages_get_unequal_blocks() -> None:
    # Gemma 4 31B: full layers with 4 heads of 512, windowed ones with 16 of 256: half the bytes, twice the tokens.
    cut = layout("Gemma-4-31B", version=NEW)
    full = next(g for g in cut.groups if g.cache.kind == "full")
    sliding = next(g for g in cut.groups if g.cache.kind == "sliding")
    assert full.block == 2 * sliding.block
    assert full.page_bytes == sliding.page_bytes


def test_the_fullest_stage_decides() -> None:
    arch = model_from_name("Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8")
    base = MemoryRequest(arch, HARDWARE["RTX-4080"], Parallelism(1, 2), (23.6, 47.5), version=OLD, max_model_len=8192)
    plan = plan_memory(base)
    alone = [s.kv / size for s, size in zip(plan.stages, plan.layout.stage_bytes, strict=True)]
    assert plan.result.blocks == int(min(alone))
    assert any("uneven" in w for w in plan.warnings)
    # A split in proportion to memory holds more.
    better = plan_memory(
        MemoryRequest(
            arch,
            HARDWARE["RTX-4080"],
            Parallelism(1, 2, partition=(16, 32)),
            (23.6, 47.5),
            version=OLD,
            max_model_len=8192,
        )
    )
    assert better.tokens > plan.tokens


def test_what_the_engine_says_when_a_request_does_not_fit() -> None:
    arch = model_from_name("Llama-3.1-8B")
    plan = plan_memory(MemoryRequest(arch, HARDWARE["RTX-3090"], version=OLD, measured=MeasuredMemory(kv_gib=3.0)))
    assert not plan.fits
    assert plan.result.max_model_len == int(3.0 * 2**30 / 131_072 // 16 * 16)
    assert "16.00 GiB KV cache is needed" in plan.says[-1]
    assert f"estimated maximum model length is {plan.result.max_model_len}" in plan.says[-1]


def test_groups_and_splits_that_do_not_divide_are_refused() -> None:
    # Qwen2.5-VL-72B: 29,568 / 2 = 14,784 is no multiple of the group of 128.
    arch = model_from_name("Qwen/Qwen2.5-VL-72B-Instruct-AWQ")
    plan = plan_memory(MemoryRequest(arch, HARDWARE["A100-80"], Parallelism(2), version=OLD, max_model_len=8192))
    assert any("14784" in r and "128" in r for r in plan.refusals)
    # 1,536 / 8 = 192 is no multiple of the block of 128 either, unless experts stay whole.
    arch = model_from_name("Qwen/Qwen3-235B-A22B-FP8")
    cut = plan_memory(MemoryRequest(arch, HARDWARE["L40S"], Parallelism(8), version=OLD, max_model_len=8192))
    whole = plan_memory(MemoryRequest(arch, HARDWARE["L40S"], Parallelism(8, ep=True), version=OLD, max_model_len=8192))
    assert any("expert parallelism" in r for r in cut.refusals)
    assert whole.fits


def test_full_utilisation_is_warned_about() -> None:
    arch = model_from_name("Llama-3.1-8B")
    plan = plan_memory(MemoryRequest(arch, HARDWARE["RTX-3090"], version=OLD, utilization=0.99, max_model_len=8192))
    assert any("graphs" in w for w in plan.warnings)
    roomy = plan_memory(MemoryRequest(arch, HARDWARE["RTX-3090"], version=OLD, utilization=0.9, max_model_len=8192))
    assert not any("graphs" in w for w in roomy.warnings)


def test_a_longer_request_can_cost_cache_in_the_old_engine() -> None:
    # V0 profiles with a whole prompt until 32,768 tokens of context, then in chunks: down, then up again.
    arch = model_from_name("Llama-3.1-8B")
    old = parse_engine("V0 0.6.5")
    tokens = [
        plan_memory(MemoryRequest(arch, HARDWARE["RTX-3090"], version=old, max_model_len=n)).tokens
        for n in (8_192, 20_000, 29_000, 40_000)
    ]
    assert tokens[0] > tokens[1] > tokens[2] < tokens[3]


def test_draft_layers_share_the_cache() -> None:
    arch = model_from_name("DeepSeek-V3")
    plain = kv_layout(arch, Parallelism(8), OLD)
    drafted = kv_layout(arch, Parallelism(8), OLD, draft_layers=1)
    assert drafted.bytes_per_token() == plain.bytes_per_token() * 62 / 61


def test_before_latent_attention_was_known_its_heads_were_cached_whole() -> None:
    # deepseek-ai/DeepSeek-V2#83: 13,360 tokens on eight 80 GB cards, where latents would give thirteen times as many.
    arch = model_from_name("deepseek-ai/DeepSeek-V2")
    plan = plan_memory(
        MemoryRequest(arch, HARDWARE["A100-80"], Parallelism(8), version=parse_engine("V0"), max_model_len=163_840)
    )
    assert plan.tokens == pytest.approx(13_360, rel=0.15)
    assert plan.layout.bytes_per_token() == 60 * 16 * 2 * 256 * 2


def test_a_state_of_32_bits_sets_the_block_that_a_log_shows() -> None:
    # vllm-project/vllm#40691: 290,864 tokens are 371 blocks of 784.
    assert layout("Qwen3.5-27B", version=parse_engine("0.19.0")).block == 784
    assert 290_864 % 784 == 0
