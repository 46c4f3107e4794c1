"""Equal modules run once: what is recorded is what a run of every module records."""

from __future__ import annotations

from functools import partial

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from catalogs.trace import record as recording  # noqa: E402
from catalogs.trace.equal_modules import CallArguments, EqualModules, Unrepeatable  # noqa: E402


def meta(*shape: int, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device="meta")


class Block(torch.nn.Module):
    """A layer of a transformer with what a recipe's layers do: views, wider numbers, several results."""

    def __init__(self, width: int = 16, gate: bool = True) -> None:
        super().__init__()
        self.norm, self.out = torch.nn.LayerNorm(width), torch.nn.Linear(2 * width, width)
        self.project = torch.nn.Linear(width, 2 * width)
        self.gate = gate

    def forward(self, x, skip=None):
        hidden = self.project(self.norm(x.float().to(x.dtype)))
        hidden = torch.nn.functional.gelu(hidden) * 2 if self.gate else torch.tanh(hidden)
        x = x + self.out(hidden)
        return x, (x if skip is None else x + skip).transpose(1, 2)


class Keeps(Block):
    """A layer that keeps a tensor for its next call."""

    kept = None

    def forward(self, x, skip=None):
        found = super().forward(x, skip)
        self.kept = found[0] * 1.0 if self.kept is None else self.kept + found[0]
        return found


class Appends(Block):
    """A layer that passes a tensor on in a list."""

    def forward(self, x, skip=None, passed=None):
        found = super().forward(x, skip)
        passed.append(found[0] * 1.0)
        return found


class InPlace(Block):
    """A layer that writes into its argument and returns it."""

    def forward(self, x, skip=None):  # noqa: ARG002 - the signature of a layer
        for _ in range(9):
            x.add_(self.out(self.project(x)))
        return x, x[:, ::2].transpose(1, 2)


KINDS = {
    "block": Block,
    "plain": lambda: Block(gate=False),
    "keeps": Keeps,
    "appends": Appends,
    "in place": InPlace,
}


class Stack(torch.nn.Module):
    def __init__(self, kinds: list[str], joined: bool) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(KINDS[kind]() for kind in kinds)
        self.joined = joined

    def forward(self, x):
        skip, passed = None, []
        for layer in self.layers:
            more = {"passed": passed} if isinstance(layer, Appends) else {}
            x, turned = layer(x, skip, **more)
            skip = turned.transpose(1, 2) if self.joined and turned.shape[-1] == x.shape[1] else None
        return x


@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4), st.integers(1, 3), st.booleans())
@settings(deadline=None, max_examples=15)
def test_a_run_that_repeats_equal_modules_records_the_same(kinds: list[str], batch: int, joined: bool) -> None:
    def run(equal: bool):
        module = Stack(kinds * 3, joined).to(device="meta", dtype=torch.bfloat16).eval()
        data = meta(batch, 6, 16)
        known = EqualModules(module) if equal else None
        return recording.record(module, lambda: module(data), [data], torch.bfloat16, known).operators

    run(False)  # the first call of some meta kernels in a process keeps tensors
    assert run(True) == run(False)


@pytest.mark.parametrize(("kind", "runs"), [("block", 3), ("appends", 6), ("keeps", 6)])
def test_equal_layers_run_once_for_each_form_of_their_arguments(kind: str, runs: int) -> None:
    module = Stack([kind] * 6, joined=True).to(device="meta", dtype=torch.bfloat16).eval()
    ran: list[int] = []
    plain = Block.forward

    def counted(self, *args, **kwargs):
        ran.append(1)
        return plain(self, *args, **kwargs)

    data = meta(2, 6, 16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Block, "forward", counted)
        recording.record(module, lambda: module(data), [data], torch.bfloat16, EqualModules(module))
    assert len(ran) == runs


def test_layers_are_equal_but_for_their_number() -> None:
    module = torch.nn.Sequential(Block(), Block(), Block(gate=False), Block(width=24))
    for i, layer in enumerate(module):
        layer.layer_idx = i
    kinds = EqualModules(module).kinds
    numbers = [kinds.get(id(layer)) for layer in module]
    assert numbers[0] == numbers[1] is not None
    assert numbers[2:] == [None, None]


def test_functions_with_other_arguments_differ_and_empty_parts_are_equal() -> None:
    gelu = torch.nn.functional.gelu
    layers = [Block() for _ in range(6)]
    for layer, approximate in zip(layers[:4], ("tanh", "tanh", "none", None), strict=True):
        layer.act = partial(gelu) if approximate is None else partial(gelu, approximate=approximate)
    for layer in layers[4:]:
        layer.further = torch.nn.ModuleList()
    module = torch.nn.Sequential(*layers)
    kinds = EqualModules(module).kinds
    numbers = [kinds.get(id(layer)) for layer in module]
    assert numbers[0] == numbers[1] is not None
    assert numbers[2:4] == [None, None]
    assert numbers[4] == numbers[5] is not None


def test_a_layer_with_a_part_of_another_layer_is_not_repeated() -> None:
    module = torch.nn.Sequential(Block(), Block())
    module[1].out = module[0].out
    kinds = EqualModules(module).kinds
    assert id(module[0]) not in kinds or id(module[1]) not in kinds


def test_arguments_that_share_memory_have_another_key() -> None:
    x, y = meta(4, 4), meta(4, 4)

    def key(*args):
        return CallArguments(args, {}, lambda _: False).key

    assert key(x, x) != key(x, y) == key(y, x)
    assert key(x, 1) != key(x, 1.0) != key(x, True)
    assert key(x) != key(x.t())
    assert key(x[1:]) != key(x[:3])


@pytest.mark.parametrize("argument", [torch.empty(2), [torch.empty(2, device="meta")], object()])
def test_arguments_that_no_form_describes_are_refused(argument: object) -> None:
    with pytest.raises(Unrepeatable):
        CallArguments((argument,), {}, lambda _: False)
