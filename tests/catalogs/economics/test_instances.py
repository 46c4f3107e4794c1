"""The cheapest whole instances: exact against every combination, on worlds that can be enumerated."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from catalogs.economics.instances import InstanceSize, cheapest_cover

SIZES = st.lists(
    st.builds(InstanceSize, st.sampled_from([1, 2, 3, 4, 8]), st.integers(1, 400).map(lambda cents: cents / 100)),
    min_size=1,
    max_size=3,
)


def bill(sizes: list[InstanceSize], counts: tuple[int, ...]) -> int:
    """The cost in cents, which is exact."""
    return sum(n * round(100 * size.usd_per_hour) for size, n in zip(sizes, counts, strict=True))


def held(sizes: list[InstanceSize], counts: tuple[int, ...], together: int, most: int) -> int:
    return sum(n * min(size.accelerators // together, most) for size, n in zip(sizes, counts, strict=True))


@given(SIZES, st.integers(1, 4), st.integers(1, 6), st.integers(1, 8))
def test_a_cover_holds_every_group_and_no_combination_is_cheaper(
    sizes: list[InstanceSize], together: int, groups: int, most: int
) -> None:
    counts = cheapest_cover(sizes, together, groups, most)
    every = [c for c in product(range(groups + 1), repeat=len(sizes)) if held(sizes, c, together, most) >= groups]
    if counts is None:
        assert every == []
        return
    assert held(sizes, counts, together, most) >= groups
    assert (bill(sizes, counts), sum(counts)) == min((bill(sizes, c), sum(c)) for c in every)


@given(SIZES, st.integers(1, 8), st.integers(1, 8))
def test_more_or_larger_groups_never_cost_less(sizes: list[InstanceSize], together: int, groups: int) -> None:
    counts, more, wider = (
        cheapest_cover(sizes, *needed, 8)
        for needed in ((together, groups), (together, groups + 1), (together + 1, groups))
    )
    if counts is None:
        assert more is None
        assert wider is None
        return
    assert more is not None
    assert bill(sizes, more) >= bill(sizes, counts)
    assert wider is None or bill(sizes, wider) >= bill(sizes, counts)


@given(st.integers(1, 500), st.integers(1, 64), st.integers(2, 8))
def test_single_accelerators_that_are_cheapest_cost_their_price_times_the_number(
    cents: int, groups: int, size: int
) -> None:
    sizes = [InstanceSize(size, size * cents / 100 + 0.01), InstanceSize(1, cents / 100)]
    assert cheapest_cover(sizes, 1, groups, 8) == (0, groups)


def test_at_equal_cost_the_fewest_instances() -> None:
    assert cheapest_cover([InstanceSize(1, 2.95), InstanceSize(8, 23.6)], 1, 8, 8) == (0, 1)


def test_a_larger_instance_is_rented_whole_if_it_is_cheaper_than_the_small_ones() -> None:
    assert cheapest_cover([InstanceSize(1, 3.0), InstanceSize(4, 8.0)], 1, 3, 8) == (0, 1)
    assert cheapest_cover([InstanceSize(1, 3.0), InstanceSize(4, 10.0)], 1, 3, 8) == (3, 0)


def test_a_group_needs_one_instance() -> None:
    assert cheapest_cover([InstanceSize(1, 1.0), InstanceSize(4, 9.0)], 2, 3, 8) == (0, 2)
    assert cheapest_cover([InstanceSize(1, 1.0)], 2, 1, 8) is None


def test_an_instance_holds_no_more_groups_than_one_node() -> None:
    """Three nodes of two accelerators are not one instance of eight, since the nodes must not be lost together."""
    assert cheapest_cover([InstanceSize(8, 8.0)], 2, 3, 4) == (1,)
    assert cheapest_cover([InstanceSize(8, 8.0)], 2, 3, 1) == (3,)
