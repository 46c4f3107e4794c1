"""Links that are shared: rates by hand, laws over random traffic, planted faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.core.clock import CONTROL, Clock
from simulator.core.invariants import InvariantViolation
from simulator.interconnect import fair_share as module
from simulator.interconnect.fair_share import (
    FairShareNetwork,
    LinkPast,
    SharedTransfer,
    TransferPieces,
    TransferStream,
    fair_rates,
)

Sent = tuple[float, float, dict[str, float]]  # when, size, seconds on each link


def ends(*sent: Sent, slow: Mapping[float, tuple[str, float]] | None = None) -> list[float]:
    """When each arrives. slow: at which time which link takes how many times as long."""
    clock, found = Clock(), [0.0] * len(sent)
    links = FairShareNetwork(clock, check_invariants=True)

    def begin(i: int) -> None:
        flow = SharedTransfer(sent[i][1], sent[i][2], 0.0, lambda: found.__setitem__(i, clock.now))
        clock.at(sent[i][0], CONTROL, [lambda _: links.begin(flow)])

    for i in range(len(sent)):
        begin(i)
    for at_s, (link, factor) in (slow or {}).items():
        clock.at(at_s, CONTROL, [lambda _, link=link, factor=factor: links.slow((link,), factor)])
    clock.run()
    return found


def test_two_equal_transfers_that_overlap_by_half() -> None:
    """A has half of it sent when B begins; each goes half as fast until A ends, at 1.5. B then has half of it left."""
    assert ends((0.0, 1.0, {"a": 1.0}), (0.5, 1.0, {"a": 1.0})) == [1.5, 2.0]


def test_who_meets_nobody_costs_one_event() -> None:
    clock = Clock()
    FairShareNetwork(clock).begin(SharedTransfer(1.0, {"a": 0.5, "b": 0.75}, 0.125, lambda: None))
    assert clock.n_pending == 1
    clock.run()
    assert clock.now == 0.875


def rates(*streams: tuple[int, dict[str, float]], slower: Mapping[Any, float] | None = None) -> list[float]:
    """Of each: how many, and the seconds that a unit takes on each link."""
    made = []
    for many, costs in streams:
        made.append(TransferStream(costs))
        made[-1].members = [(1.0, i, SharedTransfer(1.0, costs, 0.0, lambda: None)) for i in range(many)]
    found = fair_rates(made, slower or {})
    return [found[stream] for stream in made]


def test_three_transfers_over_two_links() -> None:
    """Link a carries 1 a second, b carries 2. Two cross a: half each. One of them crosses b, where the third gets 1.5.
    It ends at 4; the others at 12, as nothing frees a."""
    first, both, third = {"a": 1.0}, {"a": 1.0, "b": 0.5}, {"b": 0.5}
    assert rates((1, first), (1, both), (1, third)) == [0.5, 0.5, 1.5]
    loads = [{link: 6.0 * cost for link, cost in costs.items()} for costs in (first, both, third)]
    assert ends(*((0.0, 6.0, load) for load in loads)) == [12.0, 12.0, 4.0]
    # were a twice as quick, with two more on b: those four get half each there, and the first all the rest of a
    assert rates((1, first), (1, both), (3, third), slower={"a": 0.5}) == [1.5, 0.5, 0.5]


def test_shares_are_counted_in_bytes_whatever_the_other_end_takes() -> None:
    """One receiver takes a quarter of what the sender can: it gets a quarter, the other three."""
    assert ends((0.0, 3.0, {"out": 3.0, "slow": 12.0}), (0.0, 3.0, {"out": 3.0, "quick": 3.0})) == [12.0, 4.0]


def test_a_link_turns_slow_while_it_carries() -> None:
    """Half is sent at 0.5; at half the speed a quarter more until 1; then as ever."""
    assert ends((0.0, 1.0, {"a": 1.0}), slow={0.5: ("a", 2.0), 1.0: ("a", 1.0)}) == [1.25]
    assert ends((0.0, 1.0, {"a": 1.0}), (0.0, 1.0, {"a": 1.0}), slow={1.0: ("a", 4.0)}) == [5.0, 5.0]


def test_one_after_the_other_where_an_engine_does_so() -> None:
    clock, found = Clock(), dict[str, float]()
    links = FairShareNetwork(clock, check_invariants=True)

    def flow(name: str) -> SharedTransfer:
        return SharedTransfer(1.0, {"out": 1.0, name[0]: 1.0}, 0.5, lambda: found.__setitem__(name, clock.now))

    last = None
    for name in ("a1", "a2", "a3"):
        sent = flow(name)
        links.begin_after(last, sent, TransferPieces(0.0, 0.0, 1))
        last = sent
    assert clock.n_pending == 2  # the first arrival, which is void as somebody waits for the end, and that end
    clock.at(2.5, CONTROL, [lambda _: links.begin(flow("b1"))])
    clock.run()
    # the third has half of it left when another queue sends too
    assert found == {"a1": 1.5, "a2": 2.5, "a3": 4.0, "b1": 4.5}


def test_what_left_while_the_prompt_was_computed() -> None:
    """Four pieces, at 1, 2, 3 and 4, of a second each. The link is taken from 0 to 2.5: by 4 a second and a half is
    sent; or half of it is: then half of what passes from 1 to 2.5, and all from then on."""
    pieces = TransferPieces(0.0, 4.0, 4)
    busy, half = LinkPast(), LinkPast()
    busy.note("a", 0.0, 2.5, 1.0)
    assert busy.catch_up({"a": 4.0}, pieces) == (1.5 / 4, True)
    assert busy.catch_up({"a": 4.0}, pieces) == (0.0, True)  # that time is taken now
    half.note("a", 0.0, 2.5, 0.5)
    assert half.catch_up({"a": 4.0}, pieces) == (2.25 / 4, True)
    assert LinkPast().catch_up({"a": 4.0}, pieces) == (0.75, False)
    assert LinkPast().catch_up({"a": 4.0}, pieces._replace(free_s=3.5)) == (0.5 / 4, False)
    assert (pieces.alone_end_s(4.0), pieces.alone_end_s(8.0)) == (5.0, 9.0)


SENT = st.tuples(
    st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.125, 3.0, 7.5]),
    st.floats(0.1, 10.0),
    st.dictionaries(st.sampled_from("abcde"), st.floats(0.01, 5.0), min_size=1, max_size=4),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(SENT, min_size=1, max_size=14), st.booleans())
def test_links_are_full_and_never_more_and_all_is_sent_once(sent: list[Sent], slowed: bool) -> None:
    """The laws are looked at whenever rates change: no link above what it can, nobody slower than his links let him
    be, nothing lost. And none is quicker than alone, nor all later than one by one."""
    found = ends(*sent, slow={1.0: ("a", 3.0), 2.0: ("a", 1.0)} if slowed else None)
    one_by_one_s = max(at_s for at_s, _, _ in sent) + 3.0 * sum(max(loads.values()) for _, _, loads in sent)
    for (at_s, _, loads), end_s in zip(sent, found, strict=True):
        assert at_s + max(loads.values()) <= end_s + 1e-9
        assert end_s <= one_by_one_s + 1e-9


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0, 3), st.floats(0.1, 4.0)), min_size=1, max_size=10),
    st.sampled_from([2, 4, 32]),
)
def test_pieces_leave_no_sooner_than_they_are_there(prompts: list[tuple[float, float, float]], n: int) -> None:
    """Under the same laws, and the bounds of each: the last piece follows the prompt."""
    clock, found = Clock(), dict[int, float]()
    links = FairShareNetwork(clock, check_invariants=True, remembers=True)
    done = sorted((begun_s + took_s, begun_s, wire_s) for begun_s, took_s, wire_s in prompts)

    def begin(i: int) -> None:
        done_s, begun_s, wire_s = done[i]
        flow = SharedTransfer(wire_s, {"a": wire_s}, 0.0, lambda: found.__setitem__(i, clock.now))
        clock.at(done_s, CONTROL, [lambda _: links.begin(flow, TransferPieces(begun_s, done_s, n))])

    for i in range(len(done)):
        begin(i)
    clock.run()
    for i, (done_s, begun_s, wire_s) in enumerate(done):
        assert found[i] >= TransferPieces(begun_s, done_s, n).alone_end_s(wire_s) - 1e-9
    assert max(found.values()) <= done[-1][0] + sum(wire_s for _, _, wire_s in done) + 1e-9


TWO: tuple[Sent, Sent] = ((0.0, 1.0, {"a": 1.0}), (0.5, 1.0, {"a": 1.0, "b": 0.5}))


@pytest.mark.parametrize(
    ("wrong", "says"), [((2.0, 2.0), "carries 2"), ((0.5, 0.5), "slower than"), ((1.5, 0.5), "slower than")]
)
def test_wrong_rates_are_caught(wrong: tuple[float, float], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(streams: Any, slower: Any) -> dict[TransferStream, float]:
        found = fair_rates(streams, slower)
        return {stream: factor * rate for factor, (stream, rate) in zip(wrong, found.items(), strict=True)}

    monkeypatch.setattr(module, "fair_rates", planted)
    with pytest.raises(InvariantViolation, match=says):
        ends(*TWO)


@pytest.mark.parametrize("sent", [TWO, (TWO[0], (0.5, 1.0, {"a": 1.0}))])
def test_an_end_that_does_not_move_with_the_rate_is_caught(
    sent: tuple[Sent, Sent], monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = FairShareNetwork._share

    def share(self: FairShareNetwork, streams: Any) -> None:
        before = {stream: stream.end_s for stream in self._streams.values()}
        sound(self, streams)
        for stream, end_s in before.items():
            stream.end_s = min(stream.end_s, end_s) if stream.members else stream.end_s

    monkeypatch.setattr(FairShareNetwork, "_share", share)
    with pytest.raises(InvariantViolation, match="bytes are left"):
        ends(*sent)
