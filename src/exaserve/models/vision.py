"""Vision towers: parameters, and the patches that an engine profiles with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["image_patches_max", "vision_parameters", "vision_values_per_patch"]

QWEN_PIXELS_MAX = 12_845_056
"""Pixels that Qwen's image processors allow by default; engines profile with an image of that size."""


def _size(vision: Mapping[str, Any]) -> tuple[int, int, int]:
    """Depth, width, feed-forward width."""
    depth = int(vision.get("depth") or vision.get("num_hidden_layers") or vision.get("layers") or 0)
    # Qwen2-VL calls the tower's own width embed_dim and its output hidden_size.
    width = int(vision.get("embed_dim") or vision.get("hidden_size") or vision.get("width") or 0)
    mlp = vision.get("intermediate_size") or width * float(vision.get("mlp_ratio") or 4)
    return depth, width, int(mlp)


def vision_parameters(vision: Mapping[str, Any], hidden: int) -> int:
    """Parameters of the tower and of what projects its output to the language model's ``hidden`` width."""
    depth, width, mlp = _size(vision)
    if not depth or not width:
        return 0
    kind = str(vision.get("model_type", ""))
    gated = kind.startswith(("qwen2_5", "pixtral")) or bool(vision.get("use_gated_mlp"))
    layer = 4 * width * width + (3 if gated else 2) * width * mlp + 6 * width + mlp
    patch = int(vision.get("patch_size") or 14)
    total = depth * layer + 3 * int(vision.get("temporal_patch_size") or 1) * patch * patch * width
    merge = int(vision.get("spatial_merge_size") or 0)
    if merge:
        merged = merge * merge * width
        mergers = 1 + len(vision.get("deepstack_visual_indexes") or ())
        total += mergers * (merged * merged + merged * hidden)
    else:
        image = int(vision.get("image_size") or 0)
        total += (image // patch) ** 2 * width + width * hidden
        if kind.startswith("llama4"):
            total += 2 * 4096 * 4096 + 4096 * hidden
    return total + int(vision.get("num_position_embeddings") or 0) * width


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
