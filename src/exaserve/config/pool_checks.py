"""What is wrong with one pool, beyond single values: what cannot be started, would not fit, or would do nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from exaserve.config.cluster import STARTING_KEYS, Pool
from exaserve.config.document import Item, Problem
from exaserve.config.environment import hub_folder
from exaserve.config.fit import misfit
from exaserve.config.profile import predicted_profile
from exaserve.domain.errors import ConfigError
from exaserve.engines import ENGINES
from exaserve.engines.checkpoint import own_quantization
from exaserve.models import find_shape

__all__ = ["Given", "check_pool", "problem_at"]

Given = Mapping[str, Item]
SEQS_USUAL_MAX = 256
"""Above it a replica's batch is so large that every stream slows, and nothing is left in the gateway to place."""
_16_BIT = ("auto", "bf16", "fp16", "fp32")


def problem_at(given: Given, path: str, message: str, *, remark: bool = False) -> Problem:
    """A problem at the line where the file sets ``path``."""
    item = given.get(path)
    if item is None:
        return Problem(path, message, remark=remark)
    return Problem(path, message, item.key_line or item.line, 0 if item.key_line else item.column, remark)


def check_pool(pool: Pool, path: str, given: Given) -> Iterator[Problem]:
    """Every problem of a pool whose keys begin with ``path`` ("" or ``pools[2].``)."""
    if pool.replicas:
        for name in STARTING_KEYS:
            if path + name in given:
                yield problem_at(
                    given, path + name, f"says how replicas are started, but {path}replicas already run; keep one"
                )
        return
    if pool.engine_command and pool.engine != "command":
        yield problem_at(given, path + "engine_command", f"is only for engine: command, not {pool.engine}")
    if pool.engine == "command":
        yield from _check_command(pool, path, given)
    if not pool.starts_replicas:
        yield from _check_idle(path, given)
        return
    if pool.base_port + pool.num_replicas_per_node - 1 > 65_535:
        message = f"{pool.num_replicas_per_node} replicas from {pool.base_port} on pass port 65535"
        yield problem_at(given, path + "base_port", message)
    for i, adapter in enumerate(pool.lora_adapters):
        name, _, where = adapter.partition("=")
        if not name or not where:
            yield problem_at(given, f"{path}lora_adapters[{i}]", f"{adapter!a} is not an adapter; write name=path")
    if pool.engine == "emulator":
        yield from _check_emulated(pool, path, given)
    elif pool.engine in ENGINES and pool.engine != "null":
        yield from _check_engine(pool, path, given)
    if pool.max_num_seqs > SEQS_USUAL_MAX:
        message = (
            f"{pool.max_num_seqs} sequences at once slow every stream of a replica, and fill it before the gateway can"
            f" place requests elsewhere; {SEQS_USUAL_MAX} or less is usual"
        )
        yield problem_at(given, path + "max_num_seqs", message, remark=True)


def _check_command(pool: Pool, path: str, given: Given) -> Iterator[Problem]:
    if not pool.engine_command:
        message = 'is "command", so engine_command must give the program and its arguments'
        yield problem_at(given, path + "engine", message)
        return
    told = any("{port}" in word or str(pool.base_port) in word for word in pool.engine_command)
    if pool.num_replicas_per_node > 1:
        told = any("{port}" in word for word in pool.engine_command)
    if not told:
        message = "does not say {port}, so no replica would listen where the gateway looks for it; add it"
        yield problem_at(given, path + "engine_command", message)


def _check_idle(path: str, given: Given) -> Iterator[Problem]:
    """A pool that neither names replicas nor starts any."""
    named = next((name for name in ("replicas", "model", "engine_command") if path + name in given), None)
    if named:
        message = "is empty; give a model to start replicas for, or replicas with URLs"
        yield problem_at(given, path + named, message)
        return
    set_here = [name for name in Pool.__struct_fields__ if path + name in given and name != "replicas"]
    if set_here or path:
        where = path + set_here[0] if set_here else path.rstrip(".")
        yield problem_at(given, where, "needs a model beside it (model: NAME), or replicas with URLs")


def _check_emulated(pool: Pool, path: str, given: Given) -> Iterator[Problem]:
    """Without a profile the performance model must know model and hardware, and the one must fit on the other."""
    if pool.profile:
        return
    try:
        predicted_profile(pool)
    except ConfigError as error:
        field = {"hardware": "hardware", "precision": "precision"}.get(error.param or "", "model")
        yield problem_at(given, path + field, error.message)


def _check_engine(pool: Pool, path: str, given: Given) -> Iterator[Problem]:
    """What this engine cannot do, or would not do though the file asks for it."""
    engine = ENGINES[pool.engine]
    if pool.lora_adapters and not engine.named_adapters:
        message = f"{pool.engine} does not choose adapters by the model's name; give its own flags in engine_args"
        yield problem_at(given, path + "lora_adapters", message)
    if pool.kv_connector and pool.kv_role not in engine.kv_roles:
        yield problem_at(given, path + ("kv_role" if path + "kv_role" in given else "kv_connector"), _no_role(pool))
    if message := _precision_ignored(pool):
        yield problem_at(given, path + "precision", message)
    elif message := misfit(pool):
        stated = path + "hardware" in given
        repair = "more cards (tensor_parallel_size), a smaller precision or max_model_len"
        if stated:
            message += f". Give it {repair}; leave hardware out if the figures do not hold for this checkpoint"
        else:
            message += f". If the cards are larger, say so by hardware: NAME; else give it {repair}"
        yield problem_at(given, path + "model", message, remark=not stated)


def _no_role(pool: Pool) -> str:
    roles = ENGINES[pool.engine].kv_roles
    if roles:
        return f"{pool.kv_role} is not possible with {pool.engine}; use {' or '.join(roles)}"
    if pool.engine == "sglang":
        return (
            "SGLang moves KV between prefill and decode servers only, and these answer requests that carry a bootstrap"
            " address, which this gateway does not send; leave kv_connector and kv_role out"
        )
    return f"{pool.engine} moves no KV between replicas; leave it out"


def _precision_ignored(pool: Pool) -> str:
    """Why the engine would not heed ``precision``; "" where it does, or where the checkpoint is published so."""
    engine = ENGINES[pool.engine]
    if pool.precision in (*_16_BIT, *engine.quantizes) or "--quantization" in " ".join(pool.engine_args):
        return ""
    if own_quantization(pool.model, hub_folder()):
        return ""
    try:
        if find_shape(pool.model).native == pool.precision:
            return ""
    except ConfigError:
        pass  # a model that the table does not have
    makes = f", or write precision: {' or '.join(engine.quantizes)}" if engine.quantizes else ""
    return (
        f"{pool.engine} does not make {pool.precision} of 16-bit weights as it loads, and nothing says that"
        f" {pool.model} is published so; leave precision out if it is (the engine reads it from the checkpoint), name a"
        f" checkpoint that is quantised{makes}"
    )
