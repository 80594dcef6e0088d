"""Build hook: compiles the request path with mypyc where a C compiler and Python's headers are found.

Only wheels are compiled, never editable installations, and a compiled module's source stays beside it. The result
serves alike; docs/decisions/0006 has the reason and the figures. ``EXASERVE_COMPILE`` is read here and nowhere else:
``auto`` (the default) compiles where it can, ``0`` never does, and ``1`` fails where it cannot.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TOOLS = ["mypy[mypyc]>=1.13", "setuptools>=65"]

MARK = "# compiled\n"
"""First line of a module that is compiled: what a request passes through, in the gateway and in the simulator. Classes
that interpreted ones inherit from, or that msgspec makes, cannot be in such a module."""

_BUILD = """\
import sys
from mypyc.build import mypycify
from setuptools import Distribution
from setuptools.command.build_ext import build_ext
where, sources = sys.argv[1], sys.argv[2:]
options = ["--config-file=", "--cache-dir=" + where + "/cache"]
options += ["--no-site-packages", "--ignore-missing-imports", "--follow-imports=silent"]
extensions = mypycify([*options, *sources], opt_level="2", group_name="exaserve", target_dir=where + "/c")
command = build_ext(Distribution({"name": "exaserve", "ext_modules": extensions}))
command.build_lib, command.build_temp = where + "/lib", where + "/tmp"
command.ensure_finalized()
command.run()
"""


def wanted() -> str:
    return os.environ.get("EXASERVE_COMPILE", "auto")  # noqa: TID251 - a build has no other settings


def obstacle() -> str | None:
    """Why this machine cannot compile, or None."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if not any(shutil.which(name) for name in (compiler, "cc", "gcc", "clang")):
        return "no C compiler"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return f"no Python.h in {sysconfig.get_path('include')}"
    return None


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    def dependencies(self) -> list[str]:
        return [] if wanted() == "0" or (wanted() != "1" and obstacle()) else TOOLS

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or wanted() == "0":
            return
        why = obstacle()
        if why is None:
            try:
                self._add(self._compile(), build_data)
                return
            except (OSError, subprocess.CalledProcessError) as error:
                why = f"compiling failed: {getattr(error, 'stderr', None) or error}"
        if wanted() == "1":
            raise RuntimeError(f"EXASERVE_COMPILE=1, but {why}")
        self._say(f"built as plain Python, a request costs about half as much CPU again: {why}")

    def _say(self, text: str) -> None:
        """To whoever waits. pip shows nothing that a build prints unless it fails, but a terminal there is."""
        self.app.display_info(f"exaserve: {text}")
        with contextlib.suppress(OSError), Path("/dev/tty").open("w", encoding="utf-8") as terminal:
            terminal.write(f"\r\nexaserve: {text}\r\n")

    def _compile(self) -> Path:
        """Folder with the extension modules; made anew only when a source, this file or Python has changed."""
        root = Path(self.root)
        source = root / "src" / "exaserve"
        marked = [path for path in sorted(source.rglob("*.py")) if path.read_text("utf-8").startswith(MARK)]
        digest = hashlib.sha256(f"{sys.version} {sysconfig.get_platform()}".encode())
        for path in (*marked, Path(__file__)):
            digest.update(path.read_bytes())
        where = root / "build" / "mypyc" / digest.hexdigest()[:16]
        if not (where / "done").exists():
            shutil.rmtree(where, ignore_errors=True)
            where.mkdir(parents=True)
            self._say("compiling the request path, about two minutes (EXASERVE_COMPILE=0 leaves it plain)")
            began = time.monotonic()
            command = [
                sys.executable,
                "-c",
                _BUILD,
                str(where),
                *(str(path.relative_to(root / "src")) for path in marked),
            ]
            done = subprocess.run(command, cwd=root / "src", capture_output=True, text=True, check=False)
            if done.returncode:
                raise subprocess.CalledProcessError(
                    done.returncode, "mypyc", stderr=(done.stdout + done.stderr)[-2000:]
                )
            shutil.rmtree(where / "c", ignore_errors=True)
            shutil.rmtree(where / "tmp", ignore_errors=True)
            (where / "done").touch()
            self._say(f"compiled {len(marked)} modules in {time.monotonic() - began:.0f} s")
        return where / "lib"

    @staticmethod
    def _add(lib: Path, build_data: dict[str, Any]) -> None:
        for path in lib.rglob("*.so"):
            build_data["force_include"][str(path)] = str(path.relative_to(lib))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
