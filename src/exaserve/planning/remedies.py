"""What would make a start-up succeed that is predicted to fail: single changes, each tried."""

from __future__ import annotations

from dataclasses import replace

from exaserve.planning.memory import MemoryPlan, MemoryRequest, plan_memory
from exaserve.planning.weights import Parallelism

__all__ = ["remedies"]

UTILIZATION_MOST = 0.95
SEQS_FEW = 128
BATCH_SMALL = 2048
LENGTH_USEFUL = 2048


def remedies(failed: MemoryPlan, cards_max: int) -> list[str]:
    """Changes of one flag (with the length it then allows) after each of which the engine would start."""
    if failed.fits or not failed.stages:
        return []
    r = failed.request
    longest = failed.result.max_model_len
    tried: list[tuple[str, MemoryRequest]] = []
    if longest and longest < r.length:
        tried.append((f"--max-model-len {longest}", replace(r, max_model_len=longest)))
    if r.limits.seqs > SEQS_FEW:
        tried.append((f"--max-num-seqs {SEQS_FEW}", replace(r, max_num_seqs=SEQS_FEW)))
    if r.limits.tokens > BATCH_SMALL:
        tried.append((f"--max-num-batched-tokens {BATCH_SMALL}", replace(r, max_num_batched_tokens=BATCH_SMALL)))
    if r.utilization < UTILIZATION_MOST:
        share = replace(r, utilization=UTILIZATION_MOST)
        tried.append((f"--gpu-memory-utilization {UTILIZATION_MOST}", share))
    if r.kv_bytes > 1:
        tried.append(("--kv-cache-dtype fp8", replace(r, kv_bytes=1.0)))
    if r.graphs_inside:
        tried.append(("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0", replace(r, graphs_counted=False)))
        tried.append(("--enforce-eager", replace(r, eager=True)))
    p = r.placement
    sizes = [(2 * p.tp, p.pp), (4 * p.tp, p.pp), (p.tp, 2 * p.pp), (p.tp, 4 * p.pp)]
    for tp, pp in sizes:
        if tp * pp <= cards_max:
            option = f"--tensor-parallel-size {tp}" if tp > p.tp else f"--pipeline-parallel-size {pp}"
            tried.append((option, replace(r, placement=Parallelism(tp, pp, p.ep))))
    if not p.ep and r.arch.facts.experts and p.tp > 1:
        tried.append(("--enable-expert-parallel", replace(r, placement=replace(p, ep=True))))
    found = []
    for name, changed in tried:
        flag = name
        plan = plan_memory(changed)
        if not plan.fits and plan.result.max_model_len >= LENGTH_USEFUL:
            flag = f"{flag} --max-model-len {plan.result.max_model_len}"
            plan = plan_memory(replace(changed, max_model_len=plan.result.max_model_len))
        if plan.fits:
            # Graphs that are not counted are captured into what the share leaves: too little there ends the start.
            beside = f" (but {plan.warnings[0]})" if plan.warnings and "graphs" in plan.warnings[0] else ""
            found.append(f"{flag}: {plan.tokens:,} tokens{beside}")
    return found
