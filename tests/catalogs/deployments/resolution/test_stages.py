"""The layers of pipeline stages: the rules of the engines by hand, laws, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.deployments.resolution.stages import by_shares, divided
from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.launch.command import serve_arguments

RULES = ("before last", "all on last", "last", "first", "with output")


@pytest.mark.parametrize(
    ("rule", "layers"),
    [
        ("before last", (15, 16, 16, 15)),  # 62 layers: neither the first nor the last stage gets one of the two
        ("all on last", (15, 15, 15, 17)),
        ("last", (15, 15, 16, 16)),
        ("first", (16, 16, 15, 15)),
        ("with output", (16, 16, 16, 14)),  # of 63 layers: 15.75, 31.5 and 47.25 are the ends of the shares
    ],
)
def test_every_engine_divides_spare_layers_in_its_way(rule: str, layers: tuple[int, ...]) -> None:
    assert divided(rule, 62, 4) == layers


@given(st.sampled_from(RULES), st.integers(1, 130), st.integers(1, 16))
def test_stages_hold_all_layers_and_are_nearly_equal(rule: str, n_layers: int, stages: int) -> None:
    layers = divided(rule, n_layers, stages)
    assert sum(layers) == n_layers
    assert len(layers) == stages
    if rule != "all on last":
        assert max(layers) - min(layers) <= (2 if rule == "with output" else 1)
    if n_layers % stages == 0 and rule != "with output":
        assert set(layers) == {n_layers // stages}


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_shares_that_are_layers_give_these_layers(layers: list[int]) -> None:
    assert by_shares([*layers[:-1], layers[-1] + 1], sum(layers)) == tuple(layers)  # the output layer is the last


def made(**keys: object) -> Deployment:
    return Deployment(**{"model": "llama3.1-70b", "hardware": "h100x4", "pipeline_parallel": 4} | keys)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("engine", "layers", "written"),
    [
        ("vllm", None, {}),
        ("vllm", [20, 20, 20, 20], {}),
        ("vllm", [23, 21, 19, 17], {"VLLM_PP_LAYER_PARTITION": "23,21,19,17"}),
        ("sglang", [23, 21, 19, 17], {"SGLANG_PP_LAYER_PARTITION": "23,21,19,17"}),
    ],
)
def test_the_start_command_states_other_layers_than_the_engines_own(
    engine: str, layers: list[int] | None, written: dict[str, str]
) -> None:
    resolved = resolve(made(engine=engine, pipeline_layers=layers))
    assert sum(resolved.stage_layers) == resolved.model.n_layers
    assert serve_arguments(resolved).environment == written


def test_llama_cpp_leaves_no_stage_without_layers() -> None:
    """Of 16 layers and the output, stage 9 of 9 gets what lies beyond 8/9 of 17: the output alone."""
    keys = {"model": "llama3.2-1b", "engine": "llama.cpp", "hardware": "2*h100x8"}
    assert divided("with output", 16, 9)[-1] == 0
    with pytest.raises(InputError, match=r"leaves a stage without layers.*nearest valid choice: pipeline_parallel: 8"):
        resolve(Deployment(pipeline_parallel=9, **keys))
    assert min(resolve(Deployment(pipeline_parallel=8, **keys)).stage_layers) == 1


def test_llama_cpp_and_tensorrt_llm_state_layers_in_their_own_ways() -> None:
    own = serve_arguments(resolve(made(engine="llama.cpp", max_model_len=8192)))
    assert dict(own.flags)["--tensor-split"] == "1,1,1,1"
    other = serve_arguments(resolve(made(engine="llama.cpp", max_model_len=8192, pipeline_layers=[23, 21, 19, 17])))
    assert dict(other.flags)["--tensor-split"] == "23,21,19,18"
    assert by_shares([23, 21, 19, 18], 80) == (23, 21, 19, 17)
    file = serve_arguments(resolve(made(engine="trtllm", pipeline_layers=[23, 21, 19, 17]))).notes[0]
    assert '"pp_partition": [23, 21, 19, 17]' in file


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (
            {"pipeline_layers": [40, 40]},
            "one number for each of 4 stages: got [40, 40]; nearest valid choice: pipeline_layers: [20, 20, 20, 20]",
        ),
        ({"pipeline_layers": [20, 20, 20, 21]}, "must add up to the 80 layers of llama3.1-70b: got [20, 20, 20, 21]"),
        ({"pipeline_layers": [80, 80], "pipeline_parallel": 1}, "needs one number for each of 1 stages"),
    ],
)
def test_layers_that_are_no_division_are_refused(keys: dict[str, object], line: str) -> None:
    with pytest.raises(InputError, match="pipeline_layers") as caught:
        resolve(made(**keys))
    assert line in str(caught.value)
