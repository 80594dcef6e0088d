"""A command's options as the fields of a dataclass, so that what reads them is checked by the type checker.

::

    @dataclass(frozen=True, kw_only=True)
    class Flags:
        seed: Annotated[int, typer.Option(help="Same seed, same run.")] = 1

    simulate = command("simulate", Flags, run)   # run(flags: Flags) -> None; its docstring is the help
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

__all__ = ["ApiKey", "JsonFile", "Seed", "command"]

T = TypeVar("T")

Seed = Annotated[
    int,
    typer.Option(
        min=0, help="The same seed gives the same requests, and of a simulation the same result, to the byte."
    ),
]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write all figures to FILE ('-': standard output).")
]
ApiKey = Annotated[str, typer.Option(envvar="EXASERVE_API_KEY", show_envvar=True, help="Sent as bearer token.")]


def command(name: str, flags: type[T], run: Callable[[T], None]) -> Callable[..., None]:
    """The function that typer registers: one parameter for each field of ``flags``, in their order."""
    assert dataclasses.is_dataclass(flags)
    hints = get_type_hints(flags, include_extras=True)

    def called(**given: Any) -> None:
        run(flags(**given))

    parameters = []
    for each in dataclasses.fields(flags):
        default = inspect.Parameter.empty if each.default is dataclasses.MISSING else each.default
        parameters.append(
            inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[each.name])
        )
    called.__name__ = name
    called.__doc__ = run.__doc__
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    return called
