from __future__ import annotations

from dataclasses import replace

import pytest
from tests.preflight.shapes import GPU_HEADER, gpu_row

from exaserve.preflight import CheckVerdict, Context, find_machine
from exaserve.preflight.gpu import judge_cuda, judge_gpu, judge_xid

SMI = """+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
"""


def codes_of(judgement: object) -> list[str]:
    return [finding.code for finding in judgement.findings]  # type: ignore[attr-defined]


def csv(*rows: str) -> str:
    return "\n".join((GPU_HEADER, *rows)) + "\n"


def test_healthy_cards(h100: Context) -> None:
    judgement = judge_gpu(csv(*map(gpu_row, range(8))), h100)
    assert judgement.verdict is CheckVerdict.OK, judgement.findings
    assert judgement.facts["products"] == {"NVIDIA H100 80GB HBM3": 8}


@pytest.mark.parametrize(
    ("changes", "verdict", "code"),
    [
        ({"ecc": "Disabled"}, CheckVerdict.WARNING, "PF-GPU-003"),
        ({"volatile": "2"}, CheckVerdict.FAILED, "PF-GPU-004"),
        ({"aggregate": "2"}, CheckVerdict.WARNING, "PF-GPU-004"),
        ({"pending": "Yes"}, CheckVerdict.FAILED, "PF-GPU-005"),
        ({"retired": "4"}, CheckVerdict.WARNING, "PF-GPU-005"),
        ({"limit": "500.00"}, CheckVerdict.WARNING, "PF-GPU-006"),
        ({"limit": "500.00", "default": "500.00"}, CheckVerdict.WARNING, "PF-GPU-006"),  # the type has 700
        ({"throttle": "0x0000000000000048"}, CheckVerdict.FAILED, "PF-GPU-007"),
        ({"throttle": "0x0000000000000004"}, CheckVerdict.WARNING, "PF-GPU-007"),
        ({"temperature": "91"}, CheckVerdict.WARNING, "PF-GPU-007"),
        ({"persistence": "Disabled"}, CheckVerdict.WARNING, "PF-GPU-008"),
        ({"compute": "Prohibited"}, CheckVerdict.FAILED, "PF-GPU-009"),
        ({"mig": "Enabled"}, CheckVerdict.WARNING, "PF-GPU-010"),
        ({"width": "8"}, CheckVerdict.WARNING, "PF-GPU-011"),
    ],
)
def test_one_bad_card(changes: dict[str, str], verdict: CheckVerdict, code: str, h100: Context) -> None:
    judgement = judge_gpu(csv(*map(gpu_row, range(7)), gpu_row(7, **changes)), h100)
    assert judgement.verdict is verdict
    assert set(codes_of(judgement)) == {code}
    assert all("GPU7" in finding.text for finding in judgement.findings)


def test_what_all_cards_share_is_said_once(h100: Context) -> None:
    judgement = judge_gpu(csv(*(gpu_row(i, persistence="Disabled") for i in range(8))), h100)
    assert len(judgement.findings) == 1
    assert "GPU0, GPU1" in judgement.findings[0].text


def test_remapped_rows(h100: Context) -> None:
    base = csv(*map(gpu_row, range(8)))
    assert judge_gpu(base + "remapped, 00000000:19:00.0, 0, 0, 0, 0\n", h100).verdict is CheckVerdict.OK
    assert judge_gpu(base + "remapped, 00000000:19:00.0, 0, 3, 0, 0\n", h100).verdict is CheckVerdict.WARNING
    assert judge_gpu(base + "remapped, 00000000:19:00.0, 0, 3, 1, 0\n", h100).verdict is CheckVerdict.FAILED
    assert judge_gpu(base + "remapped, 00000000:19:00.0, 0, 3, 0, 1\n", h100).verdict is CheckVerdict.FAILED


def test_missing_mixed_and_dead_cards(h100: Context, context: Context) -> None:
    assert "PF-TOPO-012" in codes_of(judge_gpu(csv(*map(gpu_row, range(7))), h100))
    assert codes_of(judge_gpu(csv(gpu_row(0), gpu_row(1, name="NVIDIA L40S")), context)) == ["PF-GPU-002"]
    assert (
        judge_gpu("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", context).verdict
        is CheckVerdict.FAILED
    )
    assert (
        judge_gpu("Unable to determine the device handle for GPU0000:4C:00.0: Unknown Error", context).verdict
        is CheckVerdict.FAILED
    )


def test_driver_cuda_engine(context: Context) -> None:
    assert judge_cuda(SMI, context).verdict is CheckVerdict.OK
    assert judge_cuda(SMI + "torch_cuda=12.8\n", context).verdict is CheckVerdict.OK, "minor releases are compatible"
    assert codes_of(judge_cuda(SMI + "torch_cuda=13.0\n", context)) == ["PF-GPU-013"]
    old = SMI.replace("12.4", "11.4").replace("550.54.15", "470.82.01")
    assert codes_of(judge_cuda(old, replace(context, engine="vllm 0.11"))) == ["PF-GPU-013"]
    assert codes_of(judge_cuda(SMI + "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri\n", context)) == [
        "PF-GPU-012"
    ]


def test_kernel_log(context: Context) -> None:
    assert judge_xid("read\n", context).verdict is CheckVerdict.OK
    assert (
        judge_xid("[1.0] NVRM: Xid (PCI:0000:19:00): 79, pid=1, GPU has fallen off the bus.\nread\n", context).verdict
        is CheckVerdict.FAILED
    )
    assert (
        judge_xid("[1.0] NVRM: Xid (PCI:0000:19:00): 13, pid=1, Graphics Exception\nread\n", context).verdict
        is CheckVerdict.WARNING
    )
    assert (
        judge_xid("dmesg: read kernel buffer failed: Operation not permitted\nread\n", context).verdict
        is CheckVerdict.WARNING
    )


@pytest.mark.parametrize(
    ("products", "name"),
    [
        ({"NVIDIA H100 80GB HBM3": 8}, "hgx-h100-8"),
        ({"NVIDIA H100 80GB HBM3": 4}, "hgx-h100-4"),
        ({"NVIDIA H100 80GB HBM3": 7}, "hgx-h100-8"),  # one has fallen out
        ({"NVIDIA H100 80GB HBM3": 1}, None),
        ({"NVIDIA A100-SXM4-80GB": 8}, "dgx-a100-8"),
        ({"NVIDIA A100-SXM4-64GB": 4}, "a100-4"),
        ({"NVIDIA H200": 8}, "hgx-h200-8"),
        ({"NVIDIA H200 NVL": 4}, "h100-nvl"),
        ({"NVIDIA H20": 8}, "h20-8"),
        ({"NVIDIA B200": 8}, "hgx-b200-8"),
        ({"NVIDIA L40S": 4}, "l40s"),
        ({"NVIDIA GeForce RTX 4090": 8}, "rtx"),
        ({"NVIDIA H100 PCIe": 4}, None),
        ({"NVIDIA H100 80GB HBM3": 4, "NVIDIA L40S": 4}, None),
    ],
)
def test_machine_type_from_its_cards(products: dict[str, int], name: str | None, context: Context) -> None:
    found = find_machine(context.machines, products)
    assert (found.name if found else None) == name
