"""Spellings that a cluster file may also have, turned into its own before it is read.

``model`` may be a mapping that holds what belongs to the model (``model: {name: …, precision: …}``), which is how the
reference configuration of this design is written; and policies have other names elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from exaserve.config.document import Item, Problem

__all__ = ["POLICY_SPELLINGS", "own_spellings"]

POLICY_SPELLINGS: Mapping[str, str] = MappingProxyType(
    {
        "weighted_least_connection": "weighted_least_connections",
        "least_connection": "least_connections",
        "eas": "entropy",
        "entropy_aware": "entropy",
    }
)


def own_spellings(root: Item) -> tuple[Item, list[Problem]]:
    """The tree in the file's own spellings, and what is said twice by it."""
    if not isinstance(root.value, dict):
        return root, []
    top, problems = _unfolded(root, "")
    pools = top.value.get("pools")
    if pools is not None and isinstance(pools.value, list):
        unfolded = [_unfolded(pool, f"pools[{i}].") for i, pool in enumerate(pools.value)]
        problems += [problem for _, found in unfolded for problem in found]
        top.value["pools"] = _with_value(pools, [pool for pool, _ in unfolded])
    scheduling = top.value.get("scheduling")
    if scheduling is not None and isinstance(scheduling.value, dict):
        said = scheduling.value
        for key in {"strategy", "policy"} & said.keys():
            value = said[key].value
            if isinstance(value, str) and value.lower() in POLICY_SPELLINGS:
                said = {**said, key: _with_value(said[key], POLICY_SPELLINGS[value.lower()])}
        top.value["scheduling"] = _with_value(scheduling, said)
    return top, problems


def _unfolded(pool: Item, path: str) -> tuple[Item, list[Problem]]:
    """A pool whose ``model`` is a mapping, with that mapping's keys beside it instead."""
    model = pool.value.get("model") if isinstance(pool.value, dict) else None
    if model is None or not isinstance(model.value, dict):
        copy = dict(pool.value) if isinstance(pool.value, dict) else pool.value
        return _with_value(pool, copy), []
    problems: list[Problem] = []
    values = {key: each for key, each in pool.value.items() if key != "model"}
    for key, each in model.value.items():
        own = "model" if key == "name" else key
        if own in values:
            message = f"says the same as {path}{own}; keep one"
            problems.append(Problem(f"{path}model.{key}", message, each.key_line or each.line))
        elif own == "model" and key != "name":
            problems.append(Problem(f"{path}model.{key}", "is written name here", each.key_line or each.line))
        else:
            values[own] = each
    return _with_value(pool, values), problems


def _with_value(item: Item, value: object) -> Item:
    return Item(value, item.line, item.column, item.key_line, item.text)
