"""More hardware that would meet a refused request: the least of a kind, found with few tries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Hardware
from planner.answer.refusal import Refuser, _more_of, _other_kinds
from planner.problem.candidate import Candidate
from tests.planner.queue_toy import candidate


@dataclass(frozen=True)
class Counted(Refuser):
    """A refuser for which `needed` accelerators suffice, in place of a simulation."""

    needed: int = 1
    tried: list[str] = field(default_factory=list)

    def _try_on(self, hardware: Hardware) -> Candidate | None:
        self.tried.append(hardware.text)
        return candidate(1, hardware=hardware) if hardware.n_accelerators >= self.needed else None


def counted(needed: int) -> Counted:
    nothing = cast(Any, None)
    return Counted(nothing, nothing, nothing, needed=needed)


@given(own=st.integers(1, 8), more=st.integers(1, 120))
def test_the_least_hardware_that_meets_the_request_is_named(own: int, more: int) -> None:
    """Up to 8 accelerators of a node count one by one, beyond that whole nodes."""
    needed, hardware = own + more, parse_hardware(f"h100x{own}")
    refuser = counted(needed)
    found = refuser._least(_more_of(hardware), hardware)
    assert found is not None
    assert found[0].n_accelerators == (needed if needed <= 8 else 8 * -(-needed // 8))
    assert found[1].hardware == found[0]
    assert len(set(refuser.tried)) == len(refuser.tried) <= 10


@given(nodes=st.integers(1, 3), more=st.integers(1, 12))
def test_more_than_some_nodes_is_the_fewest_nodes(nodes: int, more: int) -> None:
    hardware = parse_hardware(f"{nodes}*h100x8")
    found = counted(8 * (nodes + more))._least(_more_of(hardware), hardware)
    assert found is not None
    assert found[0].n_nodes == nodes + more


@pytest.mark.parametrize("needed", [1, 2, 3, 5, 8])
def test_less_of_another_kind_is_named_if_less_suffices(needed: int) -> None:
    found = counted(needed)._least_of_others(parse_hardware("l40sx4"))
    assert found is not None
    assert (found[0].accelerator.name, found[0].n_accelerators) == ("h100", needed)


def test_nothing_is_named_if_no_size_suffices() -> None:
    assert counted(10_000)._least(_more_of(parse_hardware("h100x1")), None) is None
    assert counted(10_000)._least_of_others(parse_hardware("h100x1")) is None


def test_nothing_is_larger_than_a_slice() -> None:
    slice_ = parse_hardware("a100-80gb:2g.20gbx3")
    assert list(_more_of(slice_)) == list(_other_kinds(slice_)) == []
