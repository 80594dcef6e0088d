"""Space and speed of the disk that holds the weights, and whether the weights are complete.

The listing that :data:`WEIGHTS_COMMAND` prints begins with ``@folder`` and has one ``@file`` line per file (size, name)
and, for safetensors, one ``@header`` line with the length that the first eight bytes declare and then the JSON header
itself. That is enough to know that every tensor is there and that no file was cut, without reading the tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from exaserve.preflight.model import CheckFinding, Context, Judgement, failed, not_understood, unknown, warning
from exaserve.preflight.text import clean_lines, number, plain_names, whole

__all__ = ["WEIGHTS_COMMAND", "judge_checksums", "judge_disk", "judge_read_speed", "judge_weights"]

HEADER_BYTES_MAX = 100_000_000
"""The format's own bound of its header."""

WEIGHTS_COMMAND = r"""cd {weights} || exit 1; echo @folder
for f in *; do [ -f "$f" ] || continue
  s=$(stat -L -c %s "$f"); printf '@file %s %s\n' "$s" "$f"
  case $f in
    *.safetensors) n=$(od -An -tu8 -N8 "$f" 2>/dev/null | tr -d ' '); printf '@header %s ' "${n:-0}"
      if [ "${n:-0}" -gt 0 ] 2>/dev/null && [ "$n" -le 100000000 ] && [ "$n" -lt "$s" ]
      then head -c $((n + 8)) "$f" | tail -c "$n" | tr -d '\n'; fi; printf '\n';;
    *.index.json|config.json) printf '@json '; tr -d '\n' <"$f"; printf '\n';;
  esac
  [ "$s" -lt 1024 ] && head -c 64 "$f" | grep -aq '^version https://git-lfs' && printf '@pointer %s\n' "$f"
done; true"""


@dataclass(slots=True)
class _File:
    size: int
    header_bytes: int | None = None
    tensors: dict[str, tuple[int, int]] | None = None
    document: Any = None


@dataclass(slots=True)
class _Folder:
    files: dict[str, _File] = field(default_factory=dict)
    pointers: list[str] = field(default_factory=list)


def _parse(text: str) -> _Folder:
    folder = _Folder()
    last: _File | None = None
    for line in re.split(r"\r?\n", text):
        if match := re.match(r"@file (\d{1,16}) (.{1,255})$", line):
            last = folder.files[match[2]] = _File(int(match[1]))
        elif (match := re.match(r"@header (\d{1,20}) ?(.*)$", line)) and last is not None:
            last.header_bytes = int(match[1])
            last.tensors = _tensors(match[2])
        elif line.startswith("@json ") and last is not None:
            last.document = _decode(line[6:])
        elif line.startswith("@pointer "):
            folder.pointers.append(line[9:264])
    return folder


def _decode(text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode(errors="replace"))
    except (msgspec.DecodeError, RecursionError):
        return None


def _tensors(text: str) -> dict[str, tuple[int, int]] | None:
    """Name to (begin, end) in bytes of the data part; None where the header is none."""
    document = _decode(text)
    if not isinstance(document, dict):
        return None
    found: dict[str, tuple[int, int]] = {}
    for name, entry in document.items():
        if name == "__metadata__":
            continue
        offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(isinstance(each, int) for each in offsets):
            return None
        found[name] = (offsets[0], offsets[1])
    return found


def judge_weights(text: str, context: Context) -> Judgement:
    """Index against files, header against size, tensors against index."""
    del context
    folder = _parse(text)
    if not folder.files:
        missing = re.search(r"(?:can't cd|No such file)[^\n]*", text)
        if text.strip() == "@folder":
            return Judgement("empty folder", (failed("PF-WGT-001", "the folder of the weights has no files"),))
        if missing:
            return Judgement("no such folder", (failed("PF-WGT-001", "the folder of the weights does not exist"),))
        return not_understood("file")
    found: list[CheckFinding] = []
    if folder.pointers:
        found.append(failed("PF-WGT-002", f"Git LFS pointers instead of the files: {plain_names(folder.pointers, 4)}"))
    shards = {name: each for name, each in folder.files.items() if name.endswith(".safetensors")}
    index_name = next((name for name in folder.files if name.endswith(".safetensors.index.json")), "")
    index = folder.files[index_name].document if index_name else None
    found += _headers({name: each for name, each in shards.items() if name not in folder.pointers})
    found += _index(index_name, index, shards, folder)
    found += _beside(folder)
    other = [name for name in folder.files if name.endswith((".bin", ".gguf", ".pt", ".pth"))]
    if not shards and other:
        found.append(
            unknown("PF-WGT-006", f"{plain_names(other, 4)} cannot be checked without reading them (no safetensors)")
        )
    elif not shards:
        found.append(failed("PF-WGT-001", "the folder has no weights"))
    total = sum(each.size for name, each in folder.files.items() if name in shards or name in other)
    tensors = sum(len(each.tensors or {}) for each in shards.values())
    facts = {"files": len(shards), "bytes": total, "tensors": tensors, "index": index_name or None}
    return Judgement(f"{len(shards)} files, {tensors:,} tensors, {total / 1e9:.1f} GB", tuple(found), facts)


def _headers(shards: Mapping[str, _File]) -> list[CheckFinding]:
    found = []
    for name, each in sorted(shards.items()):
        if each.size == 0:
            found.append(failed("PF-WGT-003", f"{name} is empty"))
        elif each.header_bytes is None:
            found.append(unknown("PF-WGT-003", f"the header of {name} is not in the output"))
        elif each.tensors is None:
            found.append(failed("PF-WGT-003", f"{name} has no readable header ({each.header_bytes:,} bytes declared)"))
        else:
            wanted = 8 + each.header_bytes + max((end for _, end in each.tensors.values()), default=0)
            if each.size != wanted:
                word = "short" if each.size < wanted else "long"
                found.append(
                    failed(
                        "PF-WGT-004",
                        f"{name} is {abs(wanted - each.size):,} bytes too {word} ({each.size:,} of {wanted:,})",
                    )
                )
            spans = sorted(each.tensors.values())
            # The format allows no holes and no overlaps: each tensor begins where the one before it ends.
            if any(a[1] != b[0] for a, b in pairwise(spans)) or (spans and spans[0][0] != 0):
                found.append(failed("PF-WGT-003", f"the tensors of {name} overlap or leave holes"))
    return found


def _index(name: str, index: Any, shards: Mapping[str, _File], folder: _Folder) -> list[CheckFinding]:
    numbered = [(int(m[1]), int(m[2])) for each in shards if (m := re.search(r"-(\d{5})-of-(\d{5})\.", each))]
    found = []
    if numbered:
        lost = sorted(set(range(1, min(numbered[0][1], 10_000) + 1)) - {i for i, _ in numbered})
        if lost:
            found.append(
                failed(
                    "PF-WGT-001", f"{len(lost)} of {numbered[0][1]} files are missing: number {plain_names(lost, 6)}"
                )
            )
    if not name:
        if len(shards) > 1:
            found.append(warning("PF-WGT-005", f"{len(shards)} files and no index (model.safetensors.index.json)"))
        return found
    where = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(where, dict) or not all(isinstance(file, str) for file in where.values()):
        return [*found, failed("PF-WGT-005", f"{name} is not readable")]
    lost_files = sorted(set(where.values()) - set(folder.files))
    if lost_files:
        found.append(failed("PF-WGT-001", f"named in the index and missing: {plain_names(lost_files, 4)}"))
    absent = [
        t
        for t, file in where.items()
        if file in shards and (shards[file].tensors is not None) and t not in (shards[file].tensors or {})
    ]
    if absent:
        found.append(
            failed("PF-WGT-005", f"{len(absent)} tensors are not in the file the index names: {plain_names(absent, 3)}")
        )
    metadata = index.get("metadata")
    said = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(said, int) and not lost_files and all(each.tensors is not None for each in shards.values()):
        mapped = set(where.values())
        real = sum(end - begin for file in mapped & set(shards) for begin, end in (shards[file].tensors or {}).values())
        if real != said:
            found.append(warning("PF-WGT-005", f"the index says {said:,} bytes of tensors, the files have {real:,}"))
    return found


def _beside(folder: _Folder) -> list[CheckFinding]:
    found = []
    if "config.json" not in folder.files:
        found.append(failed("PF-WGT-007", "config.json is missing"))
    elif not isinstance(folder.files["config.json"].document, dict):
        found.append(failed("PF-WGT-007", "config.json is not readable"))
    tokenizers = {"tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json", "tiktoken.model"}
    if not tokenizers & set(folder.files) and not any(name.endswith(".tiktoken") for name in folder.files):
        found.append(warning("PF-WGT-007", "no tokenizer beside the weights"))
    return found


def judge_checksums(text: str, context: Context) -> Judgement:
    """``sha256sum -c``: every file ``OK``."""
    del context
    good, bad = 0, []
    for line in clean_lines(text):
        if match := re.match(r"(.{1,255}): (OK|FAILED)(?: open or read)?\s*$", line):
            good += match[2] == "OK"
            if match[2] == "FAILED":
                bad.append(match[1])
    if not good and not bad:
        return not_understood("checked file")
    found = (failed("PF-WGT-008", f"checksum differs: {plain_names(bad, 6)}"),) if bad else ()
    return Judgement(f"{good} of {good + len(bad)} files match", found, {"good": good, "bad": bad})


def judge_disk(text: str, context: Context) -> Judgement:
    """``df -PkT`` of the folder of the weights: free space, and whether it is a disk of this host."""
    row = re.compile(r"(\S.{0,200}?)\s+([\w.-]{1,32})\s+(\d{1,18})\s+(\d{1,18})\s+(\d{1,18})\s+(\d{1,3})%\s+(\S.*)$")
    matches = [match for line in clean_lines(text) if (match := row.match(line))]
    rows = [(m[1], m[2], int(m[3]), int(m[5]), m[7]) for m in matches]
    if not rows:
        return not_understood("file system")
    device, kind, size, free, mount = rows[-1]
    found: list[CheckFinding] = []
    if kind in {"nfs", "nfs4", "cifs", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "fuse.s3fs", "9p"}:
        found.append(
            warning(
                "PF-DISK-001", f"the weights are on a shared file system ({kind}): all replicas load from it at once"
            )
        )
    elif kind in {"overlay", "tmpfs"}:
        found.append(
            warning(
                "PF-DISK-001", f"the weights would be on {kind}: they are gone with the container or the next start"
            )
        )
    if context.weights_bytes and free * 1024 < context.weights_bytes:
        found.append(
            failed(
                "PF-DISK-002",
                f"{free / 976_562.5:.0f} GB free at {mount}, the weights have {context.weights_bytes / 1e9:.0f} GB",
            )
        )
    elif size and free < size * 0.05:
        found.append(warning("PF-DISK-002", f"{mount} is {100 - 100 * free / size:.0f} % full"))
    facts = {"device": device, "type": kind, "free_bytes": free * 1024, "mount": mount}
    return Judgement(f"{free * 1024 / 1e9:,.0f} GB free on {kind} at {mount}", tuple(found), facts)


def judge_read_speed(text: str, context: Context) -> Judgement:
    """``dd`` over a file of the weights, past the page cache: how long a start will wait for the disk."""
    match = re.search(r"(\d{1,18}) bytes.*?,\s*([\d.eE+-]{1,20}) s(?:econds)?,\s*([\d.]{1,12}) ([kMG]?B)/s", text)
    if match is None:
        return not_understood("dd result")
    taken, read = number(match[2]), whole(match[1])
    if not taken or not read:
        return not_understood("dd result")
    rate = read / taken
    found: list[CheckFinding] = []
    weights = context.weights_bytes or context.facts.get("weights", {}).get("bytes") or 0
    said = f"{rate / 1e9:.2f} GB/s"
    if weights:
        load_s = weights / rate
        said += f", {weights / 1e9:.0f} GB in {load_s:.0f} s"
        if load_s > context.load_s_max:
            found.append(
                warning(
                    "PF-DISK-003", f"reading the weights takes {load_s:.0f} s (at most {context.load_s_max:.0f} wanted)"
                )
            )
    elif rate < 0.5e9:
        found.append(warning("PF-DISK-003", f"the disk reads {said}"))
    if read < 64_000_000:
        found.append(unknown("PF-DISK-003", f"only {read / 1e6:.0f} MB were read, which says little"))
    return Judgement(said, tuple(found), {"bytes_per_s": rate})
