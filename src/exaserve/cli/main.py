"""The command ``exaserve``.

Commands are registered here by name and one line of help; the module ``exaserve.cli.<name>`` behind one is imported
only when it runs, so that ``exaserve --help`` does not pay for event loops and numeric libraries. Such a module has

- either a function of the command's own name with typer annotations (``exaserve.cli.gateway.gateway``): its docstring
  is the command's help;
- or, for a command with subcommands, a function ``group() -> typer.Typer``.

Exit codes: 0 done, 1 failed, 2 wrong flags or configuration, 130 interrupted. Errors that ExaServe raises on purpose
are printed as one message, never as a traceback.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import typer
import typer.core
import typer.main

from exaserve import __version__
from exaserve.cli.form import form
from exaserve.cli.outputs import speak_any_encoding
from exaserve.domain.errors import ConfigError, ExaServeError

__all__ = ["COMMANDS", "CommandEntry", "build", "main"]

TRY, SERVE, OPERATE = "Try it", "Serve", "Operate"


class CommandEntry(NamedTuple):
    """One command as ``exaserve --help`` lists it."""

    panel: str
    summary: str


COMMANDS: dict[str, CommandEntry] = {
    "demo": CommandEntry(TRY, "Bring up 48 emulated replicas and compare round robin with entropy."),
    "up": CommandEntry(TRY, "Run a whole cluster on this machine from one file."),
    "emulate": CommandEntry(TRY, "Run emulated engines that answer like vLLM's server."),
    "gateway": CommandEntry(SERVE, "Put one OpenAI-compatible endpoint in front of replicas."),
    "bench": CommandEntry(OPERATE, "Put an endpoint under load and judge what its users felt."),
    "agent": CommandEntry(SERVE, "Start a node's engines, watch them, and tell every gateway."),
    "calibrate": CommandEntry(OPERATE, "Measure one replica, for scheduler, planner and simulator."),
    "status": CommandEntry(OPERATE, "Show a gateway's replicas as a live table."),
    "stop": CommandEntry(OPERATE, "Drain a node's replicas, or one, and stop them."),
    "drain": CommandEntry(OPERATE, "Take a node's replicas, or one, out of rotation."),
    "restart": CommandEntry(OPERATE, "Drain a node's replicas, or one, and start them again."),
    "logs": CommandEntry(OPERATE, "Show the last lines that a node's engines printed."),
    "keys": CommandEntry(OPERATE, "Make, show, rotate and revoke API keys."),
    "tenants": CommandEntry(OPERATE, "Limits, weights and models of tenants, over all their keys."),
    "audit": CommandEntry(OPERATE, "Show what was done to keys, tenants and replicas, by whom."),
    "plan": CommandEntry(OPERATE, "Say what a model needs of machines, before they are bought."),
    "simulate": CommandEntry(OPERATE, "Compare policies on a cluster that need not exist, in virtual time."),
    "preflight": CommandEntry(OPERATE, "Check machines before a start: cards, links, network, kernel, weights."),
    "config": CommandEntry(OPERATE, "Check a cluster file, or show its effective values."),
}


class LazyGroup(typer.core.TyperGroup):
    """Knows every command's name and summary; imports a command's module when it is about to run."""

    def list_commands(self, ctx: Any) -> list[str]:
        del ctx
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = _load(args[0])
        return super().resolve_command(ctx, args)


def _load(name: str) -> Any:
    module = importlib.import_module(f"exaserve.cli.{name}")
    if hasattr(module, "group"):
        command = typer.main.get_group(module.group())
        command.name = name
        return _tidy(command)
    single = typer.Typer(add_completion=False)
    single.command(name)(getattr(module, name))
    return _tidy(typer.main.get_command(single))


def _tidy(command: Any) -> Any:
    """Help as it was meant: docstrings wrapped at the terminal's width, and ``[entropy]`` not taken for markup.

    Paragraphs with columns, told by two spaces, stay as they are. What is too long for its column is folded.
    """
    command.format_help = functools.partial(_show_folded, command.format_help)
    if command.help:
        paragraphs = command.help.split("\n\n")
        command.help = _plain("\n\n".join(each if "  " in each else " ".join(each.split()) for each in paragraphs))
    for param in command.params:
        if getattr(param, "help", None):
            param.help = _plain(param.help)
    for each in getattr(command, "commands", {}).values():
        _tidy(each)
    return command


def _show_folded(show: Callable[..., None], ctx: Any, formatter: Any) -> None:
    """typer leaves its tables to rich's default, which cuts: at 80 columns options lost their names."""
    from rich.columns import Columns
    from rich.table import Table
    from rich.text import Text
    from typer import rich_utils

    class Folded(Table):
        def add_row(self, *cells: Any, **more: Any) -> None:
            for cell in cells:
                for part in cell.renderables if isinstance(cell, Columns) else (cell,):
                    if isinstance(part, Text):
                        part.overflow = "fold"
            super().add_row(*cells, **more)

    used: Any = rich_utils  # typer has no setting for it
    used.Table = Folded
    try:
        show(ctx, formatter)
    finally:
        used.Table = Table


def _plain(text: str) -> str:
    return re.sub(r"\[(?=[a-z#/@])", r"\\[", text)


def _summary_only() -> None:
    """Stands for a command in the list; :meth:`LazyGroup.resolve_command` puts the real one in its place."""


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"exaserve {__version__} ({form()})")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """One dependable OpenAI-compatible endpoint over your own machines, scheduled by entropy.

    Start with: exaserve demo
    """


def build() -> Any:
    """The root command, ready to be called with ``args`` (or none: ``sys.argv``)."""
    app = typer.Typer(
        cls=LazyGroup,
        no_args_is_help=True,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, entry in COMMANDS.items():
        app.command(name, help=entry.summary, rich_help_panel=entry.panel)(_summary_only)
    return typer.main.get_command(app)


def main(args: list[str] | None = None) -> None:
    """Entry point of the console script. Always ends by ``SystemExit``."""
    speak_any_encoding()
    try:
        build().main(args=args, prog_name="exaserve")
    except ExaServeError as error:
        sys.stderr.write(f"error: {error.message}\n")
        raise SystemExit(2 if isinstance(error, ConfigError) else 1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
