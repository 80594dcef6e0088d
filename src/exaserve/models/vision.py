"""Vision towers: parameters, and the patches that an engine profiles with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from exaserve.domain.errors import ConfigError

__all__ = ["image_patches_max", "vision_parameters", "vision_values_per_patch"]

QWEN_PIXELS_MAX = 12_845_056
"""Pixels that Qwen's image processors allow by default; engines profile with an image of that size."""


def _first(vision: Mapping[str, Any], *keys: str) -> Any:
    return next((vision[key] for key in keys if vision.get(key)), 0)


def _size(vision: Mapping[str, Any]) -> tuple[int, int, int]:
    """Depth, width, feed-forward width.

    Raises:
        ConfigError: the tower's section does not say how large it is.
    """
    depth = int(_first(vision, "depth", "num_hidden_layers", "layers", "vt_num_hidden_layers"))
    # Qwen2-VL calls the tower's own width embed_dim and its output hidden_size.
    width = int(_first(vision, "embed_dim", "hidden_size", "width", "vt_hidden_size"))
    if vision and not (depth and width):
        raise ConfigError(
            "vision_config lacks its depth (depth, num_hidden_layers, layers) or width (hidden_size, embed_dim), "
            "and a tower of unknown size cannot be counted. Write them in, as the tower's class has them, or leave "
            "vision_config out to plan the language model alone.",
            param="vision_config",
        )
    mlp = _first(vision, "intermediate_size", "vt_intermediate_size") or width * float(vision.get("mlp_ratio") or 4)
    return depth, width, int(mlp)


def vision_parameters(vision: Mapping[str, Any], hidden: int) -> int:
    """Parameters of the tower and of what projects its output to the language model's ``hidden`` width."""
    depth, width, mlp = _size(vision)
    if not depth:
        return 0
    kind = str(vision.get("model_type", ""))
    gated = kind.startswith(("qwen2_5", "pixtral")) or bool(vision.get("use_gated_mlp"))
    layer = 4 * width * width + (3 if gated else 2) * width * mlp + 6 * width + mlp
    patch = int(vision.get("patch_size") or 14)
    total = depth * layer + 3 * int(vision.get("temporal_patch_size") or 1) * patch * patch * width
    total += int(vision.get("num_position_embeddings") or 0) * width
    total += int(vision.get("init_pos_emb_height") or 0) * int(vision.get("init_pos_emb_width") or 0) * width
    kernel = vision.get("merge_kernel_size")
    merge = (
        math.prod(int(k) for k in kernel)
        if isinstance(kernel, list)
        else int(vision.get("spatial_merge_size") or 0) ** 2
    )
    if kind.startswith("pixtral"):
        # Rotary positions; four patches become one, then two layers at the language model's width.
        return total + 4 * width * width + width * hidden + hidden * hidden
    if merge:
        merged = merge * width
        mergers = 1 + len(vision.get("deepstack_visual_indexes") or ())
        return total + mergers * (merged * merged + merged * hidden)
    total += (int(vision.get("image_size") or 0) // patch) ** 2 * width + width * hidden
    return total + (2 * 4096 * 4096 + 4096 * hidden if kind.startswith("llama4") else 0)


def image_patches_max(vision: Mapping[str, Any]) -> int:
    """Patches of the largest image that a start-up profile runs through the tower."""
    patch = int(vision.get("patch_size") or 14)
    if vision.get("spatial_merge_size"):
        return QWEN_PIXELS_MAX // (patch * patch)
    return (int(vision.get("image_size") or 896) // patch) ** 2


def vision_values_per_patch(vision: Mapping[str, Any]) -> int:
    """Values alive per patch at the widest point of one layer: its input, residual, attention and feed-forward."""
    _, width, mlp = _size(vision)
    return 2 * mlp + 8 * width
