from __future__ import annotations

import pytest
from tests.e2e.chaos import Chaos


@pytest.mark.slow
@pytest.mark.xdist_group("e2e-chaos")
def test_every_request_without_a_first_byte_succeeds_whatever_replicas_do():
    chaos = Chaos(seconds=16.0, rate=30.0, seed=7)
    chaos.run()
    kinds = chaos.kinds()
    assert not [end.detail for end in chaos.ends if end.kind == "refused"]
    assert kinds["complete"] > 0.8 * len(chaos.ends), kinds
    assert len(chaos.deeds) >= 3, chaos.deeds
    assert max(end.seconds for end in chaos.ends) < 60.0
