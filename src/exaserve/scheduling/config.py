"""Every knob of the scheduler and the admission queue, with unit, formula and trade-off."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AdmissionConfig", "SchedulerConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How replicas are filtered and priced.

    Attributes:
        policy: key of :data:`exaserve.scheduling.POLICIES`.
        queue_depth_max: requests waiting for their first token on one replica, above which it gets no new one.
            Larger hides overload in the engines, smaller moves the queue to the gateway, where placement is still open.
        kv_watermark: share of KV blocks above which a replica gets no new request, 0..1. Engines preempt near 1.
        full_scan_max: replicas up to which each one is priced; above, a random sample is. A full scan finds the true
            minimum, costs about 0.3 µs a replica, and makes gateways that do not know of each other choose alike.
        sample_size: replicas drawn above ``full_scan_max``, half of them from the idle ones while there are any.
        memory_size: best candidates of the last sampled decision that are priced again in the next one: "power of d
            choices with memory" (Mitzenmacher, Prabhakar, Shah 2002).
        foreign_share: share of requests on the replicas that this gateway did not place, above which it leans to some
            of them by chance, 0..1: several gateways with the same picture must not choose the same minimum.
        tie_s: costs closer than this are equal, seconds, and equals take turns.
        tie_share: likewise, as a share of the cost. Wider spreads an idle pool's work, narrower follows small
            differences.
        tie_idle_share: likewise, where the first of them has nothing to do at all: with one request at a time little is
            known of the others' speeds, and each would keep the turn that it happens to have.
        prefill_tokens_per_s: assumed until first bytes or a calibration say better.
        learn_span / learn_span_calibrated: largest factor, either way, by which the learned rate may differ from that
            assumption, and from a calibrated rate. Narrower bounds what odd traffic can teach, wider follows odd
            machines.
        prior_busy_s: weight of that assumption, seconds of observed prefill that count as much as it does.
        learn_window_s: seconds of observed prefill after which an observation has lost half its weight, and of one
            replica's seconds without any.
        decode_weight: share of the decode slow-down (mine by others and others by me) that counts as cost. 1
            trades a second of total latency for a second of time to first token; 4 gives the whole answers' P99 nearly
            back that a low one takes for first tokens (docs/simulator.md has figures).
        stall_weight: how much a second that one running sequence stands still for a prefill counts, against a second of
            time to first token. 0 ignores the batch; much of it makes long prompts wait for an empty replica.
        join_weight: how much the prefill of a request counts again where prompts wait or are computed already: engines
            fill a step with several prompts, and their first tokens come out when all of it is done. 0 puts requests
            behind prompts that are nearly through, and makes those late.
        decode_seq_s: seconds one running sequence adds to a request's decode phase, until calibrated.
        memory_steep_s: cost of a placement that would fill KV completely, seconds; grows from 0 at the watermark.
        failure_s: added for each recent failure of the replica, seconds, so that failing fast attracts nothing
            before the breaker opens.
        reject_shun_s / reject_shun_max_s: how long a replica gets no request of a kind that it answers with 4xx and its
            peers do not, seconds: the first time, and at most; doubled each time that it still does. Longer spares
            clients' errors, shorter finds a mended replica sooner.
        away_share: toll on a replica that is another gateway's home, as a share of the mean prefill time of a request:
            half as much where this gateway is next in line, 1.5 times as much where it is last, so that those
            who find nobody idle at home still choose differently. Without it, gateways with the same picture choose
            the same idle replica within the time they need to tell each other; with much of it, each is confined to
            its home, and short requests wait there.
        away_weight: the same toll, as a share of the request's own prefill time: the longer, the worse a collision.
        lean_share: likewise, where a gateway only leans to some replicas by chance: on the replica it likes least, as a
            share of the mean prefill time of a request.
        report_stale_s: age above which a report is not believed any more and the ledger alone judges.
        ring_vnodes: virtual nodes per replica on the consistent-hashing ring. More is evener and larger: shares of the
            keys differ by about ``1 / sqrt(ring_vnodes)``, 18 % with 32 and 9 % with 128.
        bounded_load: a session's home may carry this multiple of the mean load before the session overflows to the
            next on the ring (consistent hashing with bounded loads, Mirrokni, Thorup, Zadimoghaddam 2018).
        prefix_entries_max: blocks the approximate prefix index remembers in each of its two generations; about
            150 bytes a block up to some hundred replicas.
        literal_kv_gb / literal_age_s / literal_net_mb: the ``literal`` policy's weights of memory (KV in use less what
            is free, GB), cache age and network traffic.
    """

    policy: str = "entropy"
    queue_depth_max: int = 32
    kv_watermark: float = 0.85
    full_scan_max: int = 64
    sample_size: int = 8
    memory_size: int = 4
    foreign_share: float = 0.25
    tie_s: float = 0.001
    tie_share: float = 0.03
    tie_idle_share: float = 0.2
    prefill_tokens_per_s: float = 8_000.0
    learn_span: float = 1000.0
    learn_span_calibrated: float = 10.0
    prior_busy_s: float = 0.25
    learn_window_s: float = 10.0
    decode_weight: float = 0.5
    stall_weight: float = 0.01
    join_weight: float = 0.5
    decode_seq_s: float = 0.01
    memory_steep_s: float = 10.0
    failure_s: float = 0.5
    reject_shun_s: float = 10.0
    reject_shun_max_s: float = 300.0
    away_share: float = 0.15
    away_weight: float = 0.3
    lean_share: float = 0.4
    report_stale_s: float = 2.0
    ring_vnodes: int = 128
    bounded_load: float = 1.25
    prefix_entries_max: int = 100_000
    literal_kv_gb: float = 0.3
    literal_age_s: float = 0.5
    literal_net_mb: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    """Bounds of the queue for requests that no replica may take yet.

    Attributes:
        queue_max: requests held; above it 429, for the newest of the tenant that holds most where the new one's holds
            less.
        bytes_max: request bodies held, bytes; above it likewise. Bounds memory whatever the size of each.
        tenant_share: share of ``queue_max`` that one tenant may hold while others wait too, 0..1.
        wait_max_s: seconds a request waits before 503.
        retry_after_s: what 429 and 503 tell the client, whole seconds.
    """

    queue_max: int = 1024
    bytes_max: int = 256 * 1024 * 1024
    tenant_share: float = 0.5
    wait_max_s: float = 30.0
    retry_after_s: int = 1
