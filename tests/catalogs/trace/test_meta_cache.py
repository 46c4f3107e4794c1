"""The cache of meta results: a run with it records what a run without it records, and nothing unsafe is cached."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from catalogs.trace import record as recording  # noqa: E402
from catalogs.trace.meta_cache import MetaCache  # noqa: E402


class Plain:
    """Runs every operator, as without a cache."""

    def call(self, operator, args, kwargs):
        return operator(*args, **kwargs)


LAYERS = {
    "linear": lambda: torch.nn.Linear(8, 8),
    "norm": lambda: torch.nn.LayerNorm(8),
    "gelu": torch.nn.GELU,
    "in place": lambda: torch.nn.ReLU(inplace=True),
    "turned": lambda: Turned(),
    "split": lambda: Split(),
    "wide": lambda: torch.nn.Sequential(torch.nn.Linear(8, 24), torch.nn.SiLU(), torch.nn.Linear(24, 8)),
}


class Turned(torch.nn.Module):
    def forward(self, x):
        return (x.transpose(0, 1).contiguous() + 1).transpose(0, 1) * 1.0


class Split(torch.nn.Module):
    def forward(self, x):
        highest, index = x.float().max(-1, keepdim=True)
        return (x - highest).to(x.dtype) * (index > 0)


@given(st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=8), st.integers(1, 4))
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_run_with_the_cache_records_the_same(layers: list[str], batch: int) -> None:
    module = torch.nn.Sequential(*(LAYERS[name]() for name in layers * 2)).to(device="meta", dtype=torch.bfloat16)

    def run():
        data = torch.empty(batch, 5, 8, device="meta", dtype=torch.bfloat16)
        return recording.record(module.eval(), lambda: module(data), [data], torch.bfloat16).operators

    cached = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "MetaCache", Plain)
        assert run() == cached


def meta(*shape: int, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="meta")


def test_equal_calls_give_new_tensors_of_the_same_form() -> None:
    cache, add = MetaCache(), torch.ops.aten.add.Tensor
    x = meta(3, 4).t()
    first, second = cache.call(add, (x, x), {}), cache.call(add, (x, x), {})
    assert (first.shape, first.stride(), first.dtype) == (second.shape, second.stride(), second.dtype)
    assert first.untyped_storage()._cdata != second.untyped_storage()._cdata


def test_numbers_that_are_equal_but_of_other_types_have_results_of_their_own() -> None:
    cache, add = MetaCache(), torch.ops.aten.add.Scalar
    whole = meta(3, dtype=torch.int64)
    for _ in range(2):
        assert [cache.call(add, (whole, one), {}).dtype for one in (1, 1.0)] == [torch.int64, torch.float32]


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        (torch.ops.aten.t.default, lambda: (meta(3, 4),)),
        (torch.ops.aten._unsafe_view.default, lambda: (meta(3, 4), [12])),
        (torch.ops.aten.relu_.default, lambda: (meta(3, 4),)),
    ],
)
def test_what_shares_memory_is_never_cached(operator, args) -> None:
    cache = MetaCache()
    for _ in range(2):
        given = args()
        found = cache.call(operator, given, {})
        assert found.untyped_storage()._cdata == given[0].untyped_storage()._cdata


def test_a_tensor_with_values_is_never_cached() -> None:
    cache = MetaCache()
    for value in (1.0, 2.0):
        assert cache.call(torch.ops.aten.add.Tensor, (torch.tensor(value), torch.tensor(1.0)), {}) == value + 1
