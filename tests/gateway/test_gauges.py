"""What is told of the replicas: one series for each, or sums by node."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from exaserve.domain.replica import ReplicaId, ReplicaSpec, Report
from exaserve.gateway.fleet.gauges import ReplicaGauges
from exaserve.health import HealthConfig
from exaserve.scheduling import Scheduler, SchedulerConfig
from exaserve.serving.fleet import Fleet


def fleet_of(nodes: int, each: int) -> Fleet:
    fleet = Fleet(Scheduler(SchedulerConfig(), Random(0)), HealthConfig(), lambda: None)
    for node in range(nodes):
        for number in range(each):
            replica = ReplicaId(f"n{node}/r{number}")
            fleet.add(ReplicaSpec(replica, f"http://h:{node}{number}", ("m",), node=f"n{node}"), 0.0)
            if number:
                fleet.probed(replica, True, "ok", 0.0, 0.01)
            fleet.report(Report(replica, 1, 0.0, running=2, waiting=1, kv_use=0.1 * number), 0.0)
    return fleet


def samples(gauges: ReplicaGauges, nodes: Mapping[str, str] | None) -> dict[str, float]:
    lines = [line for family in gauges.families(nodes) if family is not None for line in family.lines()]
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_each_replica_has_its_own_series():
    shown = samples(ReplicaGauges(fleet_of(2, 3), lambda: 1.0), None)
    assert shown['exaserve_replica_state{replica="n0/r0",state="unknown"}'] == 1
    assert shown['exaserve_replica_eligible{replica="n1/r2"}'] == 1
    assert shown['exaserve_replica_report_age_seconds{replica="n1/r2"}'] == 1.0
    assert shown['exaserve_replica_entropy_seconds{replica="n1/r2",term="total"}'] > 0


def test_a_node_has_the_sums_of_its_replicas_and_the_largest_of_shares_and_ages():
    fleet = fleet_of(2, 3)
    nodes: dict[str, str] = {replica: member.ledger.spec.node for replica, member in fleet.members().items()}
    gauges = ReplicaGauges(fleet, lambda: 1.0)
    for _ in range(2):
        shown = samples(gauges, nodes)
        assert shown['exaserve_replica_state{node="n0",state="unknown"}'] == 1
        assert shown['exaserve_replica_state{node="n0",state="healthy"}'] == 2
        assert shown['exaserve_replica_eligible{node="n1"}'] == 2
        assert shown['exaserve_replica_running{node="n1"}'] == 6
        assert shown['exaserve_replica_kv_use_ratio{node="n1"}'] == 0.2
        assert shown['exaserve_replica_report_age_seconds{node="n1"}'] == 1.0
        assert not any("replica=" in name for name in shown)


def test_replicas_may_leave_between_two_pieces():
    fleet = fleet_of(8, 12)
    gauges = ReplicaGauges(fleet, lambda: 1.0)
    paused = 0
    for family in gauges.families(None):
        if family is None:
            paused += 1
            fleet.remove(list(fleet.members())[-1])
    assert paused == 3
