"""Reads the profiles that ``exaserve calibrate`` writes, and puts their figures where a pool has none of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from exaserve.config.cluster import Pool
from exaserve.config.document import TEXT_BYTES_MAX
from exaserve.domain.errors import ConfigError
from exaserve.perfmodel import Calibration, EngineProfile, parse_calibration, profile
from exaserve.perfmodel.constants import ENGINE_RELEASES
from exaserve.scheduling.config import SchedulerConfig

__all__ = [
    "load_profile",
    "pool_engine_profile",
    "predicted_profile",
    "profile_remarks",
    "with_profile",
    "with_weights",
]

_WEIGHTS = {"literal_kv_gb": "kv_gb", "literal_age_s": "kv_age_s", "literal_net_mb": "net_mb"}


def load_profile(path: str | Path) -> Calibration:
    """The measured profile of a file.

    Raises:
        ConfigError: the file cannot be read, or is none.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(TEXT_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}", param="profile") from None
    if len(data) > TEXT_BYTES_MAX:
        raise ConfigError(f"{path}: is larger than {TEXT_BYTES_MAX:,} bytes", param="profile")
    try:
        document = yaml.safe_load(data.decode())
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}", param="profile") from None
    return parse_calibration(document, str(path))


def with_profile(pool: Pool, directory: Path) -> Pool:
    """The pool with its profile's figures where it has none; its ``profile`` becomes an absolute path.

    Raises:
        ConfigError: as :func:`load_profile`.
    """
    if not pool.profile:
        return pool
    path = (directory / pool.profile).absolute()
    found = load_profile(path)
    return msgspec.structs.replace(
        pool,
        profile=str(path),
        prefill_tokens_per_s=pool.prefill_tokens_per_s or found.value("prefill_tokens_per_s"),
        decode_step_s=pool.decode_step_s or found.decode_step_s,
        kv_bytes_per_token=pool.kv_bytes_per_token or found.value("kv_bytes_per_token"),
        kv_tokens_max=pool.kv_tokens_max or found.limits.get("kv_tokens_max", 0),
        max_model_len=pool.max_model_len or found.limits.get("max_model_len", 0),
    )


def profile_remarks(pool: Pool) -> list[str]:
    """What is worth a thought of a pool's profile (by :func:`with_profile`): of another model, or without the constants
    that only the simulator and the emulator cannot do without."""
    if not pool.profile:
        return []
    found = load_profile(pool.profile)
    file = Path(pool.profile).name
    names = {_bare(name) for name in (pool.model, pool.served_name) if name}
    remarks = [
        f"profile: {file} has no {name}; the gateway learns it, but exaserve simulate and emulated replicas refuse "
        "this file: measure again with the runs that it lists"
        for name in ("prefill_tokens_per_s", "decode_fixed_s")
        if not found.value(name)
    ]
    if found.model and names and _bare(found.model) not in names:
        remarks.append(f"profile: {file} is of {found.model}, not of {pool.model or pool.served_name}")
    return remarks


def _bare(model: str) -> str:
    """``meta-llama/Llama-3.1-8B`` and ``/models/llama-3.1-8b`` are one model."""
    return model.rstrip("/").rsplit("/", 1)[-1].lower()


def with_weights(scheduling: SchedulerConfig, pools: Sequence[Pool]) -> SchedulerConfig:
    """The literal score's weights as the first profile that has any measured them, where the file leaves them alone."""
    default = SchedulerConfig()
    for pool in pools:
        weights = load_profile(pool.profile).weights if pool.profile else {}
        if weights:
            measured: dict[str, Any] = {
                name: weights[key].value
                for name, key in _WEIGHTS.items()
                if key in weights and getattr(scheduling, name) == getattr(default, name)
            }
            return dataclasses.replace(scheduling, **measured)
    return scheduling


def pool_engine_profile(pool: Pool) -> EngineProfile:
    """How fast one replica of a pool is: measured where it has a profile, else predicted from its hardware.

    Raises:
        ConfigError: the model does not fit its accelerators, or the profile's file is none.
    """
    if pool.profile:
        found = load_profile(pool.profile)
        return dataclasses.replace(
            found.engine_profile(),
            max_num_seqs=found.limits.get("max_num_seqs") or pool.max_num_seqs,
            token_budget=found.limits.get("token_budget") or pool.emulator.token_budget,
        )
    return predicted_profile(pool)


def predicted_profile(pool: Pool) -> EngineProfile:
    """How fast one replica of a pool is by the performance model. ConfigError as :func:`pool_engine_profile`."""
    return profile(
        pool.hardware,
        pool.model,
        pool.precision,
        tp=pool.tensor_parallel_size,
        pp=pool.pipeline_parallel_size,
        max_num_seqs=pool.max_num_seqs,
        token_budget=pool.emulator.token_budget,
        block_size=pool.emulator.block_size,
        max_model_len=pool.max_model_len or None,
        # Emulated engines, and those of a command of their own, are taken for vLLM's.
        engine=pool.engine if pool.engine in ENGINE_RELEASES else "vllm",
    )
