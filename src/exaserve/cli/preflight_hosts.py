"""Where ``exaserve preflight`` gets its outputs: this machine, hosts over SSH, or files saved before."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from exaserve.domain.errors import ConfigError
from exaserve.preflight import MARK, Check, Output, check_named, recognise, script, split

__all__ = ["Collected", "SshOptions", "collect_hosts", "collect_local", "read_hosts", "read_saved", "save"]

OUTPUT_BYTES_MAX = 64 << 20
"""Of one host: headers of a few hundred files of weights are the largest part, some 20 MB."""
FILES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class SshOptions:
    """How hosts are reached.

    Attributes:
        command: the client and its own options, such as ``("ssh", "-J", "bastion")``.
        connect_timeout_s: for the TCP connection and the greeting.
        session_timeout_s: for all checks of one host.
        hosts_at_once: sessions open at the same time.
    """

    command: tuple[str, ...] = ("ssh",)
    connect_timeout_s: int = 10
    session_timeout_s: float = 900.0
    hosts_at_once: int = 16

    def argv(self, host: str) -> list[str]:
        options = [
            "BatchMode=yes",
            f"ConnectTimeout={self.connect_timeout_s}",
            "ServerAliveInterval=15",
            "ServerAliveCountMax=4",
        ]
        flags = [word for option in options for word in ("-o", option)]
        return [*self.command, "-T", *flags, "--", host, "sh -s"]


@dataclass(frozen=True, slots=True)
class Collected:
    """Outputs of one host.

    Attributes:
        host: its name, or that of the saved file.
        outputs: by check id; none, and no problem either, where a saved file was not recognised.
        problem: why it could not be reached.
        raw: what :func:`save` keeps.
    """

    host: str
    outputs: Mapping[str, Output]
    problem: str = ""
    raw: str = ""


async def collect_local(checks: Sequence[Check], values: Mapping[str, str], timeout_s: float) -> Collected:
    """Runs the checks on this machine."""
    return await _session("this machine", ["sh", "-s"], script(checks, values), timeout_s)


async def collect_hosts(
    hosts: Sequence[str],
    checks: Callable[[str], tuple[Sequence[Check], Mapping[str, str]]],
    ssh: SshOptions,
    done: Callable[[Collected], None],
) -> list[Collected]:
    """Runs the checks on every host, a bounded number at once; one host's failure is its own."""
    gate = asyncio.Semaphore(ssh.hosts_at_once)

    async def one(host: str) -> Collected:
        async with gate:
            chosen, values = checks(host)
            collected = await _session(host, ssh.argv(host), script(chosen, values), ssh.session_timeout_s)
            done(collected)
            return collected

    return list(await asyncio.gather(*(one(host) for host in hosts)))


async def _session(host: str, argv: Sequence[str], text: str, timeout_s: float) -> Collected:
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=1 << 20,
            start_new_session=True,  # a terminal's interrupt reaches us, and we end the client
        )
    except OSError as error:
        return Collected(host, {}, f"{argv[0]} cannot be started: {error.strerror}")
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    problem = ""
    # Bounded buffers filled by tasks of their own, so that a time-out keeps what has come so far.
    out, err = bytearray(), bytearray()
    readers = [
        asyncio.create_task(_read(process.stdout, out, OUTPUT_BYTES_MAX)),
        asyncio.create_task(_read(process.stderr, err, 1 << 16)),
    ]
    try:
        async with asyncio.timeout(timeout_s):
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                process.stdin.write(text.encode())
                await process.stdin.drain()
                process.stdin.close()
            await asyncio.gather(*readers)
            await process.wait()
    except TimeoutError:
        problem = f"the session did not end within {timeout_s:g} s"
    finally:
        for reader in readers:
            reader.cancel()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    raw = out.decode(errors="replace")
    outputs = split(raw)
    if outputs:
        return Collected(host, outputs, "", raw)
    said = err.decode(errors="replace").strip().splitlines()
    return Collected(host, {}, problem or (said[-1][:300] if said else f"exit status {process.returncode}"), raw)


async def _read(stream: asyncio.StreamReader, into: bytearray, most: int) -> None:
    while block := await stream.read(1 << 16):
        into.extend(block[: most - len(into)])


def read_hosts(names: Sequence[str], file: Path | None) -> list[str]:
    """Hosts of the options, comma-separated or repeated, and of a file with one per line (``#`` begins a comment).

    Raises:
        ConfigError: the file cannot be read, or a name would be an option of ssh.
    """
    found = [part.strip() for name in names for part in name.split(",") if part.strip()]
    if file is not None:
        try:
            lines = file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: {error}") from error
        found += [line.split("#")[0].split()[0] for line in lines if line.split("#")[0].split()]
    for host in found:
        if host.startswith("-"):
            raise ConfigError(f"{host} is not a host name")
    return list(dict.fromkeys(found))


# ------------------------------------------------------------------------------------------------ saved outputs
def save(collected: Collected, folder: Path) -> None:
    """One file per host, which ``read_saved`` reads.

    Raises:
        ConfigError: the folder cannot be written.
    """
    name = "".join(c if c.isalnum() or c in "-_.@" else "_" for c in collected.host)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.txt").write_text(collected.raw)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}") from error


def read_saved(folder: Path) -> list[Collected]:
    """Hosts of a folder (or of one file).

    A file that ``--save`` or the script of ``--script`` wrote is a host. Of other files, a sub-folder is a host and its
    files are its outputs; a file by itself is a host of its own. The check is taken from the file's name (topology.txt,
    ibstat.log), else from its contents.

    Raises:
        ConfigError: nothing there can be read.
    """
    if not folder.exists():
        raise ConfigError(f"{folder} does not exist")
    files = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())[:FILES_MAX]
    hosts: dict[str, Collected] = {}
    unknown: list[str] = []
    for path in files:
        text = _text(path)
        if text is None:
            continue
        if f"\n{MARK} " in text or text.startswith(f"{MARK} "):
            hosts[path.stem] = Collected(path.stem, split(text), "", text)
            continue
        check = check_named(path.stem) or recognise(text)
        relative = path.relative_to(folder) if path != folder else Path(path.name)
        if check is None:
            unknown.append(str(relative))
            continue
        name = relative.parts[0] if len(relative.parts) > 1 else _own_name(path, check, folder)
        old = hosts.get(name, Collected(name, {}))
        # A second output of one check (two pastes) becomes a host of its own: no text is left out.
        if check.id in old.outputs:
            name = str(relative)
            old = Collected(name, {})
        hosts[name] = Collected(name, {**old.outputs, check.id: Output(text)})
    if not hosts:
        seen = f" ({', '.join(unknown[:5])} not recognised)" if unknown else ""
        raise ConfigError(f"{folder} has no saved output that is recognised{seen}")
    for name in unknown:
        hosts.setdefault(name, Collected(name, {}))
    return list(hosts.values())


def _own_name(path: Path, check: Check, folder: Path) -> str:
    return folder.resolve().name if path.stem == check.id and path != folder else path.stem


def _text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(OUTPUT_BYTES_MAX).decode(errors="replace")
    except OSError:
        return None
