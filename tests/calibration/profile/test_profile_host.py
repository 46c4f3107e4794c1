"""The HTTP round trip of the host: it must not wait for a delayed acknowledgement."""

from __future__ import annotations

import time

from calibration.profile.kernels.host import _round_trip

#: Least delay of an acknowledgement on Linux (TCP_DELACK_MIN, net/tcp.h), seconds.
DELAYED_S = 0.040


def test_a_round_trip_waits_for_no_delayed_acknowledgement() -> None:
    """The kernel acknowledges the first segments of a connection at once, so only later calls could wait."""
    call, took_s = _round_trip(), []
    for _ in range(60):
        began = time.perf_counter()
        assert b"choices" in call()
        took_s.append(time.perf_counter() - began)
    assert sorted(took_s[20:])[10] < DELAYED_S / 2  # a busy machine may delay most of them, but not all
