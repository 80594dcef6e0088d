# ruff: noqa: E501 - lines of real tools' outputs are long
from __future__ import annotations

import json
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from exaserve.preflight import CheckVerdict, Context, check_named, script, split
from exaserve.preflight.storage import judge_checksums, judge_disk, judge_read_speed, judge_weights

TENSORS = {f"model.layers.{i}.weight": [64, 64] for i in range(4)}


def codes_of(judgement: object) -> list[str]:
    return [finding.code for finding in judgement.findings]  # type: ignore[attr-defined]


def header(names: list[str]) -> tuple[str, int]:
    entries, at = {}, 0
    for name in names:
        size = 2 * TENSORS[name][0] * TENSORS[name][1]
        entries[name] = {"dtype": "BF16", "shape": TENSORS[name], "data_offsets": [at, at + size]}
        at += size
    return json.dumps({"__metadata__": {"format": "pt"}, **entries}), at


def write_model(folder: Path) -> None:
    names = list(TENSORS)
    where: dict[str, str] = {}
    total = 0
    for i, part in enumerate((names[:2], names[2:]), 1):
        file = f"model-{i:05d}-of-00002.safetensors"
        text, size = header(part)
        (folder / file).write_bytes(struct.pack("<Q", len(text)) + text.encode() + bytes(size))
        where |= dict.fromkeys(part, file)
        total += size
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": where}, indent=2)
    )
    (folder / "config.json").write_text('{\n "model_type": "llama"\n}\n')
    (folder / "tokenizer.json").write_text("{}")


def listing() -> str:
    """What the command prints for a complete model of one file."""
    text, size = header(list(TENSORS))
    return (
        f'@file 24 config.json\n@json {{"model_type": "llama"}}\n@file {8 + len(text) + size} model.safetensors\n'
        f"@header {len(text)} {text}\n@file 2 tokenizer.json\n"
    )


def run(folder: Path, name: str = "weights") -> str:
    check = check_named(name)
    assert check is not None
    text = script([check], {"weights": str(folder)})
    done = subprocess.run(["sh", "-s"], input=text.encode(), capture_output=True, check=False, timeout=60)
    return split(done.stdout.decode())[name].text


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "a model's folder"
    folder.mkdir()
    write_model(folder)
    return folder


def test_complete_weights(model: Path, context: Context) -> None:
    judgement = judge_weights(run(model), context)
    assert judgement.verdict is CheckVerdict.OK, judgement.findings
    assert judgement.facts["tensors"] == 4
    assert judge_weights(listing(), context).verdict is CheckVerdict.OK


def test_truncated_file(model: Path, context: Context) -> None:
    file = model / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    judgement = judge_weights(run(model), context)
    assert codes_of(judgement) == ["PF-WGT-004"]
    assert "100 bytes too short" in judgement.findings[0].text


def test_missing_file(model: Path, context: Context) -> None:
    (model / "model-00001-of-00002.safetensors").unlink()
    assert set(codes_of(judge_weights(run(model), context))) == {"PF-WGT-001"}


def test_pointer_instead_of_file(model: Path, context: Context) -> None:
    (model / "model-00001-of-00002.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    )
    judgement = judge_weights(run(model), context)
    assert judgement.verdict is CheckVerdict.FAILED
    assert "PF-WGT-002" in codes_of(judgement)


def test_empty_damaged_and_swapped_files(model: Path, context: Context) -> None:
    first, second = model / "model-00001-of-00002.safetensors", model / "model-00002-of-00002.safetensors"
    a, b = first.read_bytes(), second.read_bytes()
    first.write_bytes(b"")
    assert "PF-WGT-003" in codes_of(judge_weights(run(model), context))
    first.write_bytes(a[:9] + b"!" + a[10:])
    assert "PF-WGT-003" in codes_of(judge_weights(run(model), context))
    first.write_bytes(b)
    second.write_bytes(a)
    assert "PF-WGT-005" in codes_of(judge_weights(run(model), context))


def test_what_stands_beside_the_weights(model: Path, context: Context) -> None:
    (model / "config.json").write_text("{")
    (model / "tokenizer.json").unlink()
    assert codes_of(judge_weights(run(model), context)) == ["PF-WGT-007", "PF-WGT-007"]
    (model / "model.safetensors.index.json").unlink()
    assert "PF-WGT-005" in codes_of(judge_weights(run(model), context))


def test_no_folder_and_other_formats(tmp_path: Path, context: Context) -> None:
    assert codes_of(judge_weights(run(tmp_path / "none"), context)) == ["PF-WGT-001"]
    assert codes_of(judge_weights(run(tmp_path), context)) == ["PF-WGT-001"]
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert "PF-WGT-006" in codes_of(judge_weights(run(tmp_path), context))


def test_checksums(model: Path, context: Context) -> None:
    import hashlib

    file = model / "tokenizer.json"
    (model / "SHA256SUMS").write_text(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  tokenizer.json\n")
    assert judge_checksums(run(model, "checksums"), context).verdict is CheckVerdict.OK
    file.write_text("{ }")
    assert judge_checksums(run(model, "checksums"), context).verdict is CheckVerdict.FAILED


def test_disk(context: Context) -> None:
    text = "Filesystem     Type 1024-blocks      Used Available Capacity Mounted on\n/dev/nvme0n1p1 ext4 3750000000 100000000 3650000000       3% /models\n"
    assert judge_disk(text, context).verdict is CheckVerdict.OK
    assert codes_of(judge_disk(text, replace(context, weights_bytes=4_000_000_000_000))) == ["PF-DISK-002"]
    assert codes_of(judge_disk(text.replace("ext4", "nfs4"), context)) == ["PF-DISK-001"]
    full = text.replace("3650000000", "36000000")
    assert codes_of(judge_disk(full, context)) == ["PF-DISK-002"]


def test_read_speed_against_the_size(context: Context) -> None:
    text = "256+0 records in\n256+0 records out\n4294967296 bytes (4.3 GB, 4.0 GiB) copied, 2.0 s, 2.1 GB/s\n"
    assert judge_read_speed(text, context).verdict is CheckVerdict.OK
    assert judge_read_speed(text, replace(context, weights_bytes=140_000_000_000)).verdict is CheckVerdict.OK
    assert codes_of(judge_read_speed(text, replace(context, weights_bytes=1_400_000_000_000))) == ["PF-DISK-003"]
    assert codes_of(
        judge_read_speed("1000 bytes (1.0 kB) copied, 0.001 s, 1.0 MB/s", replace(context, weights_bytes=1))
    ) == ["PF-DISK-003"]
