"""Images in vLLM V1's steps, in worlds small enough to count by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.errors import InputError
from catalogs.models.media_items import Image, MediaLayout
from catalogs.workloads.media import RequestMedia
from catalogs.workloads.request_set import RequestSet
from simulator.cache.encoder_cache import EncoderLimits, RequestEmbeddings
from simulator.cluster.cluster import RunOptions
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_rules
from simulator.core.batch import Encoding
from tests.simulator.worlds import Linear, requests, rules


@dataclass(frozen=True)
class Seeing(Linear):
    """A step that encodes images is longer by half a second for each and 1/64 s for each patch."""

    def encoding_s(self, encoding: Encoding) -> float:
        return 0.5 * encoding.vision.items + encoding.vision.patches / 64


SMALL, LARGE = MediaLayout(8, 8, 1, 32), MediaLayout(16, 16, 1, 64)


def imaged(
    sent: RequestSet, kinds: list[list[int]], contents: list[list[int]] | None = None, before: int = 0
) -> RequestSet:
    """Return requests whose images are small (0) or large (1), included in their input tokens."""
    counts = np.array([len(each) for each in kinds])
    flat = [k for each in kinds for k in each]
    ids = list(range(len(flat))) if contents is None else [c for each in contents for c in each]
    images = RequestMedia(
        counts,
        np.cumsum(counts) - counts,
        np.full(len(kinds), before),
        np.array(flat, dtype=np.int64),
        np.array(ids, dtype=np.int64),
        (Image(1, 1), Image(2, 2)),
        layouts=(SMALL, LARGE),
        model="toy",
    )
    return replace(sent, media=images)


def serve(sent: RequestSet, budget: int = 64, cache: int = 64, **changes: object) -> Run:
    encoder_limits = EncoderLimits(budget, cache, rejects=changes.get("policy") != "sglang")
    limits = rules(encoder_limits=encoder_limits, **changes)
    return run_rules(limits, Seeing(), sent, 1, RunOptions(check_invariants=True))


def work(run: Run) -> list[tuple[int, int, int]]:
    """Return (prompt tokens, images, patches) of each step with a prompt."""
    log = run.replicas[0].logs[0]
    return [
        (int(p), int(n), int(x))
        for p, n, x in zip(log.prefill_tokens, log.vision_units, log.vision_patches, strict=True)
        if p
    ]


def test_one_image_makes_its_step_longer_by_its_encoding() -> None:
    plain = serve(requests([0.0], [20], [3]))
    run = serve(imaged(requests([0.0], [20], [3]), [[0]]))
    assert work(run) == [(20, 1, 32)]
    assert run.first_token_s.tolist() == [1.0 + 0.5 + 32 / 64]
    assert (run.last_token_s - run.first_token_s).tolist() == (plain.last_token_s - plain.first_token_s).tolist()
    assert run.replicas[0].media == (1, 0)


def test_a_step_encodes_what_its_budget_holds_and_computes_the_prompt_up_to_there() -> None:
    """Three images of 16 tokens, and a budget of 40 embeddings: two of them, then the third with the text."""
    run = serve(imaged(requests([0.0], [50], [1]), [[1, 1, 1]]), budget=40)
    assert work(run) == [(32, 2, 128), (18, 1, 64)]
    assert run.first_token_s.tolist() == [2 * 1.0 + 3 * 0.5 + 3.0]


def test_the_token_budget_splits_an_image_that_is_encoded_once() -> None:
    """A budget of 10 tokens: the first image is encoded with its first token, the second in the second step."""
    run = serve(imaged(requests([0.0], [20], [1]), [[0, 0]]), max_num_batched_tokens=10)
    assert work(run) == [(10, 2, 64), (10, 0, 0)]  # tokens 0..9 touch both images
    behind = serve(imaged(requests([0.0], [20], [1]), [[0]], before=12), max_num_batched_tokens=10)
    assert work(behind) == [(10, 0, 0), (10, 1, 32)]


@pytest.mark.parametrize("lag", [0, 1])
def test_the_cache_holds_an_image_until_its_last_token_is_computed(lag: int) -> None:
    """A cache of one large image: the second is encoded when the step with the end of the first has ended."""
    run = serve(imaged(requests([0.0], [40], [1]), [[1, 1]]), cache=16, lag=lag)
    assert work(run) == [(16, 1, 64), (24, 1, 64)]
    start_s = run.replicas[0].logs[0].start_s
    first_s = 1.0 + 0.5 + 1.0
    assert start_s.tolist() == [0.0, first_s]


def test_equal_images_are_encoded_once_while_they_stay() -> None:
    sent = requests([0.0, 10.0, 20.0], [20, 20, 20], [1, 1, 1])
    run = serve(imaged(sent, [[0], [0], [0]], [[7], [7], [9]]))
    assert work(run) == [(20, 1, 32), (20, 0, 0), (20, 1, 32)]
    assert run.replicas[0].media == (2, 1)
    assert run.ttft_s.tolist() == [2.0, 1.0, 2.0]
    evicted = serve(imaged(sent, [[0], [1], [0]], [[7], [9], [7]]), cache=16)
    assert work(evicted) == [(20, 1, 32), (20, 1, 64), (20, 1, 32)]  # the large image takes all of the cache


def test_two_requests_of_one_step_share_an_encoding() -> None:
    run = serve(imaged(requests([0.0, 0.0], [20, 20], [1, 1]), [[0], [0]], [[7], [7]]))
    assert work(run) == [(40, 1, 32)]
    assert run.replicas[0].media == (1, 1)


def test_tokens_in_the_prefix_cache_need_no_encoder() -> None:
    sent = requests([0.0, 10.0], [20, 20], [1, 1], hashes=[[1, 2, 3, 4], [1, 2, 3, 5]])
    run = serve(imaged(sent, [[0], [0]], [[7], [8]]), prefix_caching=True)
    assert run.cached_tokens.tolist() == [0, 12]
    assert work(run) == [(20, 1, 32), (8, 0, 0)]


@st.composite
def loads(draw: st.DrawFn) -> tuple[RequestSet, list[list[int]], list[list[int]]]:
    n = draw(st.integers(1, 12))
    kinds = [draw(st.lists(st.integers(0, 1), max_size=3)) for _ in range(n)]
    contents = [[2 * draw(st.integers(0, 4)) + kind for kind in each] for each in kinds]
    texts = [draw(st.integers(1, 40)) for _ in range(n)]
    inputs = [text + sum((8, 16)[k] for k in each) for text, each in zip(texts, kinds, strict=True)]
    arrivals = sorted(draw(st.lists(st.integers(0, 20), min_size=n, max_size=n)))
    outputs = [draw(st.integers(1, 12)) for _ in range(n)]
    return requests([float(a) for a in arrivals], inputs, outputs), kinds, contents


@given(loads(), st.integers(16, 40), st.integers(16, 60), st.integers(0, 1), st.integers(30, 200))
def test_budgets_hold_and_every_image_is_encoded_or_found(
    load: tuple[RequestSet, list[list[int]], list[list[int]]], budget: int, cache: int, lag: int, blocks: int
) -> None:
    sent, kinds, contents = load
    limits = {"lag": lag, "kv_blocks": blocks, "max_num_batched_tokens": 24, "max_num_seqs": 4}
    run = serve(imaged(sent, kinds, contents), budget, cache, **limits)
    log = run.replicas[0].logs[0]
    # A patch is a quarter of an embedding, so patches / 4 are the embeddings of a step.
    assert (log.vision_patches / 4).max(initial=0) <= budget
    encoded, hits = run.replicas[0].media or (0, 0)
    assert encoded == log.vision_units.sum()
    if not run.preemptions.any():
        images = sum(map(len, kinds))
        assert len({c for each in contents for c in each}) <= encoded <= images
        if all(len(set(each)) == len(each) for each in contents):
            # A prompt releases an item with the end of its first occurrence, and finds it again for a later one.
            assert encoded + hits <= images
    slow = serve(imaged(sent, kinds, contents), budget, cache, **limits)
    assert slow.last_token_s.tolist() == run.last_token_s.tolist()


@given(loads(), st.integers(0, 1), st.integers(30, 200))
def test_text_alone_runs_as_without_images(
    load: tuple[RequestSet, list[list[int]], list[list[int]]], lag: int, blocks: int
) -> None:
    limits = {"lag": lag, "kv_blocks": blocks, "max_num_batched_tokens": 24, "max_num_seqs": 4}
    options = RunOptions(check_invariants=True)
    plain = run_rules(rules(**limits), Linear(), load[0], 1, options)
    served = serve(load[0], **limits)
    assert [a.table().tobytes() for a in plain.replicas[0].logs] == [
        b.table().tobytes() for b in served.replicas[0].logs
    ]
    assert plain.last_token_s.tolist() == served.last_token_s.tolist()


def test_images_need_a_deployment_and_a_model_that_read_them() -> None:
    sent = imaged(requests([0.0], [20], [1]), [[0]])
    with pytest.raises(InputError, match="the deployment serves text only"):
        run_rules(rules(), Linear(), sent)
    assert sent.media is not None
    with pytest.raises(InputError, match="no model has read the images"):
        run_rules(rules(), Linear(), replace(sent, media=replace(sent.media, layouts=())))
    with pytest.raises(TypeError, match="Linear does not model the encoding of items"):
        run_rules(rules(encoder_limits=EncoderLimits(64, 64)), Linear(), sent)


# ---- SGLang


def test_sglang_encodes_all_items_of_a_prompt_with_its_first_chunk() -> None:
    """24 tokens of two images and 16 of text, in chunks of 16."""
    sent = imaged(requests([0.0], [40], [2]), [[0, 1]])
    run = serve(sent, policy="sglang", block_size=1, max_num_batched_tokens=16)
    assert work(run) == [(16, 2, 96), (16, 0, 0), (8, 0, 0)]
    assert run.replicas[0].media == (2, 0)


def test_sglang_encodes_again_what_its_cache_does_not_hold() -> None:
    """The second chunk begins before the end of the images, the third behind it."""
    sent = imaged(requests([0.0], [40], [2]), [[0, 1]])
    run = serve(sent, cache=23, policy="sglang", block_size=1, max_num_batched_tokens=16)
    assert work(run) == [(16, 2, 96), (16, 2, 96), (8, 0, 0)]
    assert run.status.tolist() == [2]


def test_sglang_knows_the_images_of_a_request_together() -> None:
    """The same two images are found; one of them alone has no entry of its own."""
    sent = imaged(requests([0.0, 50.0, 100.0], [30, 30, 30], [2, 2, 2]), [[0, 1], [0, 1], [1]], [[7, 8], [7, 8], [8]])
    run = serve(sent, policy="sglang", block_size=1)
    assert run.replicas[0].media == (3, 2)


def test_the_cache_of_whole_requests_evicts_the_least_recently_used() -> None:
    cache = RequestEmbeddings(10)
    cache.insert((1,), 4)
    cache.insert((2,), 4)
    assert cache.find((1,))
    cache.insert((3, 4), 5)
    assert not cache.find((2,))
    assert cache.find((1,))
    cache.insert((5,), 11)
    assert not cache.find((5,))
    assert cache.free == 1


@given(loads(), st.integers(4, 60), st.integers(30, 200), st.integers(4, 40))
def test_sglang_serves_every_load_of_images(
    load: tuple[RequestSet, list[list[int]], list[list[int]]], cache: int, blocks: int, budget: int
) -> None:
    sent, kinds, contents = load
    limits = {"kv_blocks": 16 * blocks, "max_num_batched_tokens": budget, "max_num_seqs": 4, "block_size": 1}
    run = serve(imaged(sent, kinds, contents), 64, cache, policy="sglang", **limits)
    log = run.replicas[0].logs[0]
    encoded, hits = run.replicas[0].media or (0, 0)
    assert encoded == log.vision_units.sum()
    assert encoded + hits >= sum(len(each) for each, status in zip(kinds, run.status, strict=True) if status == 2)
