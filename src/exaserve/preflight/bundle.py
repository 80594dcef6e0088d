"""One shell script that runs many checks, and its output cut up again.

The script is POSIX ``sh``: it goes to a host over one SSH session, or is carried there by hand where no SSH reaches
(``exaserve preflight --script``), and its output is the saved form that ``--from`` reads. Each check runs under
``timeout`` where that exists, with no input, its standard error after its standard output.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from exaserve.preflight.model import Check, Output

__all__ = ["MARK", "fill", "script", "split"]

MARK = "@@exaserve-preflight"
_LINE = re.compile(rf"^{MARK} (begin|end|missing) ([a-z0-9_]{{1,40}})(?: (\S{{1,64}}))?\s*$")
_OUTPUT_CHARS_MAX = 64 << 20

_PROLOGUE = f"""LC_ALL=C; export LC_ALL
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin:/opt/rocm/bin:/usr/local/cuda/bin"; export PATH
E=$(mktemp 2>/dev/null || echo "/tmp/exaserve-preflight.$$"); trap 'rm -f "$E"' EXIT
T=; command -v timeout >/dev/null 2>&1 && T=timeout
c() {{ # check, seconds, program, command
  if [ -n "$3" ] && ! command -v "$3" >/dev/null 2>&1; then printf '\\n{MARK} missing %s %s\\n' "$1" "$3"; return 0; fi
  printf '\\n{MARK} begin %s\\n' "$1"
  if [ -n "$T" ]; then timeout "$2" sh -c "$4" </dev/null 2>"$E"; else sh -c "$4" </dev/null 2>"$E"; fi
  rc=$?; head -c 65536 "$E"; printf '\\n{MARK} end %s %s\\n' "$1" "$rc"
}}
"""


def fill(command: str, values: Mapping[str, str]) -> str:
    """The command with its placeholders filled in, each quoted for the shell."""
    for name, value in values.items():
        command = command.replace("{" + name + "}", shlex.quote(value))
    return command


def script(checks: Iterable[Check], values: Mapping[str, str]) -> str:
    """The whole script. Checks whose placeholders are not in ``values`` must not be among ``checks``."""
    lines = [_PROLOGUE]
    for check in checks:
        command = shlex.quote(fill(check.command, values))
        lines.append(f"c {check.id} {check.timeout_s:g} {shlex.quote(check.program)} {command}")
    return "\n".join(lines) + "\n"


def split(text: str) -> dict[str, Output]:
    """Outputs by check id. A check that began and did not end is a problem; one that never began is absent."""
    found: dict[str, Output] = {}
    name, lines = "", list[str]()
    for line in text[:_OUTPUT_CHARS_MAX].split("\n"):
        match = _LINE.match(line)
        if match is None:
            if name:
                lines.append(line)
            continue
        kind, check, value = match[1], match[2], match[3] or ""
        if kind == "missing":
            found[check] = Output(missing=value)
        elif kind == "begin":
            if name:
                found.setdefault(name, Output(problem="the session ended during this check"))
            name, lines = check, []
        elif name == check:
            code = int(value) if re.fullmatch(r"\d{1,3}", value) else None
            late = code in {124, 137}
            found[check] = Output("\n".join(lines).strip("\n"), code, problem="no answer in time" if late else "")
            name = ""
    if name:
        found[name] = Output(problem="the session ended during this check")
    return found
