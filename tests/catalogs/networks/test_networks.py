"""Networks: a world worked by hand, the file's round trip, and one line for every broken rule."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.errors import InputError
from catalogs.networks.files import load_network, network_text, read_network, write_network
from catalogs.networks.network import DerivedSize, JobSize, NeuralNetwork, Operator, Repeat, Stage
from catalogs.networks.polynomials import Polynomial, parse_polynomial
from catalogs.networks.shapes import AttentionShape, ConvolutionShape, GemmShape

P = Polynomial.of

HAND = """
name: hand
family: test
source: worked by hand
traced_with: nothing
sizes:
  batch: {default: 2, maximum: 8}
  height: {default: 8, minimum: 4, multiple_of: 4}
  steps: {default: 5}
derived:
  rows: {function: ceil, of: [height, 3]}
stages:
  encode:
    module: hand.Encoder
    dtype: bf16
    parameters: 13
    peak_activation_bytes: [batch*height*itemsize, 40*batch + 100]
    operators:
      - {name: conv, kind: convolution, operator: aten.convolution, dims: {batch: batch, in_channels: 3,
         out_channels: 5, kernel: [2, 2], stride: [2, 2], dilation: [1, 1],
         input: [height, height], output: [height/2, height/2]},
         reads: 3*batch*height**2*itemsize, writes: 5*batch*height**2*itemsize/4, weights: 60}
  step:
    runs: 2*steps
    module: hand.Step
    dtype: bf16
    parameters: 64
    peak_activation_bytes: [batch*height*itemsize]
    operators:
      - repeat: 3
        operators:
          - {name: 'blocks.*.up', kind: gemm, operator: aten.mm, dims: {m: batch*rows, n: 4, k: 8}, weights: 32}
          - repeat: 2
            operators:
              - {name: 'blocks.*.act', kind: pointwise, operator: aten.relu, dims: {elements: 4*batch*rows},
                 reads: 4*batch*rows*itemsize, writes: 4*batch*rows*itemsize + 8}
"""


@pytest.fixture
def hand(tmp_path: Path) -> NeuralNetwork:
    path = tmp_path / "hand.yaml"
    path.write_text(HAND)
    return read_network(path)


def test_a_network_at_its_default_job(hand: NeuralNetwork) -> None:
    encode, step = hand.at()
    assert (encode.runs, step.runs) == (1, 10)
    assert encode.flops == 2 * 2 * (4 * 4) * (2 * 2) * 3 * 5
    assert encode.peak_activation_bytes == 180  # 40*2 + 100 is more than 2*8*2
    up, act = step.operators
    assert (up.times, act.times) == (3, 6)
    assert up.shape == GemmShape(m=6, n=4, k=8)  # 3 rows: 8 / 3 rounded up
    assert (act.read_bytes, act.written_bytes) == (48, 56)
    assert (up.read_bytes, up.written_bytes) == (6 * 8 * 2, 6 * 4 * 2)  # not stated: those of its dims
    assert step.flops == 3 * 2 * 6 * 4 * 8


def test_bytes_follow_the_itemsize_and_weights_do_not(hand: NeuralNetwork) -> None:
    wide = hand.at(itemsize=4)[1].operators[1]
    assert (wide.read_bytes, wide.written_bytes) == (96, 104)


def test_the_written_file_reads_as_an_equal_network(hand: NeuralNetwork, tmp_path: Path) -> None:
    path = tmp_path / "again.yaml"
    write_network(hand, path)
    assert read_network(path) == hand
    assert load_network(str(path)) == hand
    assert network_text(hand) == path.read_text()


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"hieght": 8}, "hand has no such size: got 'hieght'; nearest valid choice: height"),
        ({"height": 6}, "height is 4 or more in steps of 4: got 6; nearest valid choice: 8"),
        ({"batch": 9}, "batch is 1 to 8: got 9; nearest valid choice: 8"),
        ({"steps": 0}, "steps is 1 or more: got 0; nearest valid choice: 1"),
    ],
)
def test_an_invalid_job_is_one_line(hand: NeuralNetwork, job: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        hand.at(job)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("n: 4,", "", "operator blocks.*.up: a gemm needs the dim n"),
        ("n: 4,", "n: 4, q: 1,", "a gemm has no such dim: got 'q'"),
        ("n: 4,", "n: [4],", "the dim n of a gemm is one expression: got [4]"),
        ("kernel: [2, 2]", "kernel: [2]", "operator conv: dilation, input, kernel, output, stride have one to three"),
        ("kind: gemm", "kind: gem", "operator.kind: input should be 'gemm', 'attention'"),
        ("m: batch*rows", "m: batch*row", "operator blocks.*.up uses a name that is no size: got 'row'; nearest valid"),
        ("m: batch*rows", "m: batch/rows", "an expression has names, integers"),
        ("m: batch*rows", "m: batch/7", "batch/7 is not a count at batch=2: got '2/7'"),
        ("default: 8,", "default: 6,", "height is 4 or more in steps of 4: got 6"),
        ("height: {", "itemsize: {", "the name of a size has letters"),
        ("runs: 2*steps", "runs: 2*itemsize", "stage step uses a name that is no size: got 'itemsize'"),
    ],
)
def test_a_broken_file_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "broken.yaml"
    assert old in HAND
    path.write_text(HAND.replace(old, new))
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        read_network(path)
    assert "broken.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_network_names_where_to_see_them() -> None:
    with pytest.raises(InputError, match="unknown network: got 'no-such-network-at-all'"):
        load_network("no-such-network-at-all")


names = st.sampled_from(["batch", "height", "width"])
polynomials = st.recursive(
    st.one_of(st.fractions(-50, 50, max_denominator=16).map(P), names.map(Polynomial.name)),
    lambda inner: st.tuples(st.sampled_from("+-*"), inner, inner).map(
        lambda t: t[1] + t[2] if t[0] == "+" else t[1] - t[2] if t[0] == "-" else t[1] * t[2]
    ),
    max_leaves=6,
)


@given(polynomials, polynomials, st.fixed_dictionaries({n: st.integers(1, 50) for n in ("batch", "height", "width")}))
def test_polynomials_are_a_ring_and_their_text_reads_back(p: Polynomial, q: Polynomial, at: dict[str, int]) -> None:
    assert parse_polynomial(str(p)) == p
    assert (p + q).value(at) == p.value(at) + q.value(at)
    assert (p - q).value(at) == p.value(at) - q.value(at)
    assert (p * q).value(at) == p.value(at) * q.value(at)
    assert (p - p) == Polynomial()


def test_an_expression_as_people_write_it() -> None:
    assert parse_polynomial("(height - 2)**2/4").value({"height": 7}) == Fraction(25, 4)
    for text in ("", "a.b", "f(x)", "x/y", "2**x", "x**99", "1.5*x", "True", "x" * 30_000):
        with pytest.raises(InputError, match="an expression has"):
            parse_polynomial(text)


@given(st.integers(1, 9), st.integers(1, 9))
def test_causal_attention_executes_the_scores_at_and_below_the_diagonal(queries: int, keys: int) -> None:
    shape = AttentionShape(1, 1, 1, queries, keys, 1, 1, causal=1)
    assert shape.executed_flops == 2 * 2 * sum(1 for q in range(queries) for k in range(keys) if k <= q)
    assert shape.flops == 4 * queries * keys


def test_a_convolution_and_its_implicit_gemm_have_equal_flops() -> None:
    for transposed in (0, 1):
        shape = ConvolutionShape(2, 8, 12, (3, 1), (10, 6), (4, 6), (2, 1), (1, 1), groups=4, transposed=transposed)
        assert shape.gemm.flops == shape.flops == 2 * 2 * (60 if transposed else 24) * 3 * 8 * 12 // 4


@given(st.integers(-40, 40), st.integers(1, 9))
def test_a_derived_size_rounds(first: int, second: int) -> None:
    def value(function: str) -> int:
        return DerivedSize("d", function, P(first), P(second)).value({})  # type: ignore[arg-type]

    assert value("floor") == first // second
    assert value("ceil") == -(-first // second)
    assert (value("min"), value("max")) == (min(first, second), max(first, second))


def test_a_stage_that_runs_zero_times_and_an_operator_that_falls_away() -> None:
    gelu = Operator("g", "pointwise", "aten.gelu", {"elements": P(1)}, P(2), P(2))
    stage = Stage("s", P("runs"), (Repeat(P("batch - 1"), (gelu,)),), 0, "bf16", (P(1),))
    network = NeuralNetwork("n", "f", (JobSize("batch", 1), JobSize("runs", 1)), (stage,))
    assert network.at()[0].operators == ()
    assert network.at({"batch": 3})[0].operators[0].times == 2
