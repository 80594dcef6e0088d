"""From the flags of ``exaserve plan`` to a question for the planner: the only place of it that reads files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from exaserve.cli.plan_flags import PlanFlags
from exaserve.config import load_profile
from exaserve.domain.errors import ConfigError
from exaserve.models import Architecture, find_shape, model_from_config, model_from_name
from exaserve.models.supported import check_name
from exaserve.perfmodel import Calibration, find_hardware
from exaserve.planning import (
    LogFacts,
    Machines,
    MeasuredMemory,
    PlanRequest,
    Prices,
    RequestClass,
    Targets,
    TrafficDemand,
    find_link,
    make_plan,
    named_engine,
    reference_demand,
)
from exaserve.planning.queueing import saturation

__all__ = ["ASSUMED", "model_of", "parse_partition", "read_prices", "request_of", "users_rate", "with_profile"]

ASSUMED = RequestClass("assumed", 1000, 200, 1.0)
"""What is planned with where no demand is given, so that every figure exists; the output says so."""

CONFIG_BYTES_MAX = 20_000_000


def _read(path: Path, what: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}", param=what) from None
    if len(data) > CONFIG_BYTES_MAX:
        raise ConfigError(f"{path}: larger than {CONFIG_BYTES_MAX} bytes; is it the right file?", param=what)
    return data.decode("utf-8", "replace")


def model_of(model: str, fmt: str = "auto") -> Architecture:
    """The model that a name, a ``config.json`` or a folder with one stands for."""
    path = Path(model)
    if path.suffix.lower() == ".gguf":
        check_name(model)
    if path.is_dir():
        if not (path / "config.json").is_file() and any(path.glob("*.gguf")):
            check_name(str(next(path.glob("*.gguf"))))
        path = path / "config.json"
        if not path.is_file():
            raise ConfigError(f"{model} is a folder without config.json.", param="model")
    if not path.is_file():
        return model_from_name(model, fmt)
    try:
        config = json.loads(_read(path, "model"))
    except ValueError as error:
        raise ConfigError(f"{path}: no JSON: {error}", param="model") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: must be a mapping of keys.", param="model")
    extra = path.parent / "hf_quant_config.json"
    if "quantization_config" not in config and extra.is_file():
        config["quantization_config"] = {"quant_method": "modelopt", **json.loads(_read(extra, "model"))}
    return model_from_config(config, str(path.parent if path.name == "config.json" else path), fmt)


def read_prices(path: Path | None) -> Prices:
    """Prices of a YAML or JSON file: ``cards: {H100: 2.5}``, ``currency``, ``kwh``, ``pue``, ``api_million_tokens``,
    ``powered`` (electricity comes on top).
    """
    if path is None:
        return Prices()
    import yaml

    try:
        given = yaml.safe_load(_read(path, "prices"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: no YAML: {error}", param="prices") from None
    known = {"cards", "currency", "kwh", "pue", "api_million_tokens", "powered"}
    if not isinstance(given, Mapping) or set(given) - known:
        odd = ", ".join(sorted(set(given) - known)) if isinstance(given, Mapping) else "not a mapping"
        raise ConfigError(f"{path}: {odd}. Known keys: {', '.join(sorted(known))}.", param="prices")
    cards = {find_hardware(str(name)).name: _amount(path, name, v) for name, v in (given.get("cards") or {}).items()}
    rest: dict[str, Any] = {k: v for k, v in given.items() if k != "cards"}
    for key in ("kwh", "pue", "api_million_tokens"):
        if key in rest:
            rest[key] = _amount(path, key, rest[key])
    return Prices(card_hour=cards, **rest)


def _amount(path: Path, name: object, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ConfigError(f"{path}: {name} is {value!r}; it must be a number of at least 0.", param="prices")
    return float(value)


def parse_partition(text: str) -> tuple[int, ...]:
    """Layers per pipeline stage: ``20,21,20``."""
    if not text:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--partition {text}: give layers per stage, such as 20,21,20.", param="partition") from None


def _memory(text: str) -> tuple[float, ...]:
    if not text:
        return ()
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--memory-gib {text}: give GiB, or one figure per stage.", param="memory_gib") from None
    if any(v <= 0 for v in values):
        raise ConfigError("--memory-gib must be above 0.", param="memory_gib")
    return values


def _demand(flags: PlanFlags) -> tuple[TrafficDemand, bool]:
    if flags.scenarios:
        return reference_demand(flags.rps), True
    prompt, output = flags.prompt_tokens or 1000, flags.output_tokens or 200
    if flags.rps is not None:
        return TrafficDemand((RequestClass("requests", prompt, output, flags.rps),)), True
    if flags.users is not None:
        # Replaced by the rate that so many users make, once the speed of a replica is known.
        return TrafficDemand((RequestClass("users", prompt, output, max(1e-3, flags.users / 60.0)),)), True
    return TrafficDemand((replace(ASSUMED, prompt_tokens=prompt, output_tokens=output),)), False


def users_rate(r: PlanRequest, users: int, think_s: float) -> PlanRequest:
    """The request with the rate that ``users`` make who wait for an answer, then think for ``think_s`` seconds."""
    for _ in range(6):
        plan = make_plan(r)
        now = plan.now
        if now is None:
            profile = plan.best.profile if plan.best else None
            rate = saturation(profile, r.demand)[0] if profile else 0.0
            answer_s = r.demand.output / max(1e-9, rate * r.demand.output) if rate else 10.0
        else:
            answer_s = now.per_class[0].request_s
        rate = users / (think_s + answer_s)
        if abs(rate / r.demand.rate_s - 1) < 0.01:
            break
        r = replace(r, demand=r.demand.at(rate))
    return r


def request_of(flags: PlanFlags, log: LogFacts | None = None) -> PlanRequest:
    """The question of the flags; what they leave open is taken from a log, if there is one."""
    log = log or LogFacts()
    model = flags.model or log.model
    if not model:
        raise ConfigError("Name a model, a folder with config.json, or a log that says which.", param="model")
    arch = model_of(model, flags.format)
    hardware = find_hardware(flags.gpu)
    total = log.get("total_gib")
    memory = _memory(flags.memory_gib) or ((total,) if total else ())
    fleet = Machines(
        hardware=hardware,
        link=find_link(flags.network),
        cards_per_node=flags.cards_per_node,
        link_group=flags.link_group,
        nodes=flags.nodes,
        nics=flags.nics,
        nodes_per_rack=flags.nodes_per_rack,
        memory_gib=memory,
    )
    version = named_engine(flags.engine, flags.engine_version)
    if not flags.engine_version and log.figures and flags.engine == "vllm":
        version = log.version
    demand, given = _demand(flags)
    share = flags.utilization or log.get("utilization") or version.utilization_default
    if not 0 < share <= 1:
        raise ConfigError(f"--utilization {share:g} must be in (0, 1].", param="utilization")
    fp8 = flags.kv_cache_dtype.startswith("fp8") or log.kv_fp8
    request = PlanRequest(
        arch=arch,
        fleet=fleet,
        demand=demand,
        demand_given=given,
        targets=Targets(flags.ttft_p99_ms / 1e3, flags.tpot_ms / 1e3),
        version=version,
        utilization=share,
        max_model_len=flags.max_model_len or log.whole("length"),
        max_num_seqs=flags.max_num_seqs or log.whole("seqs"),
        max_num_batched_tokens=flags.max_num_batched_tokens or log.whole("batched_tokens"),
        kv_bytes=1.0 if fp8 else 2.0,
        block=flags.block_size or log.whole("block_size") or 16,
        draft_layers=flags.draft_layers,
        images=flags.images,
        eager=flags.eager,
        graphs_counted=flags.count_graphs,
        tp=flags.tp or log.whole("tp"),
        pp=flags.pp or log.whole("pp"),
        ep=True if flags.ep or log.expert_parallel else None,
        partition=parse_partition(flags.partition),
        replicas_per_node=flags.replicas_per_node,
        prices=read_prices(flags.prices),
        measured=MeasuredMemory(flags.weights_gib, flags.non_torch_gib, flags.activation_gib, flags.kv_gib),
        offline=flags.offline,
        operations=not flags.no_operations,
        confidence=flags.confidence,
    )
    if flags.profile is not None:
        request = with_profile(request, load_profile(flags.profile))
    if flags.users is not None and flags.rps is None and not flags.scenarios:
        request = users_rate(request, flags.users, flags.think_s)
    return request


def with_profile(r: PlanRequest, profile: Calibration) -> PlanRequest:
    """The request for the layout that a profile was measured on.

    A profile is of one replica on its cards. Where the flags do not say how that was cut, it is the layout whose cache
    comes nearest to the profile's, or the one that would be planned without.

    Raises:
        ConfigError: the profile is another model's, or no layout fits.
    """
    measured = profile.model.rstrip("/").rsplit("/", 1)[-1].lower()
    asked = r.arch.name.rstrip("/").rsplit("/", 1)[-1].lower()
    if measured and measured != asked and not _same_shape(measured, asked):
        raise ConfigError(
            f"The profile was measured on {profile.model}, the plan is for {r.arch.name}; calibrate a replica of it.",
            param="profile",
        )
    if not r.tp:
        fitting = [o for o in make_plan(r).options if o.memory.fits]
        if not fitting:
            return replace(r, profile=profile)
        tokens = profile.limits.get("kv_tokens_max", 0)
        best = min(fitting, key=lambda o: abs(o.memory.tokens - tokens)) if tokens else fitting[0]
        r = replace(r, tp=best.placement.tp, pp=best.placement.pp, ep=best.placement.ep)
    return replace(r, pp=r.pp or 1, profile=profile)


def _same_shape(one: str, other: str) -> bool:
    try:
        return find_shape(one) == find_shape(other)
    except ConfigError:
        return False
