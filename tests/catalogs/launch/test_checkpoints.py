"""Published quantised checkpoints: what the catalog lists, and the start command that serves them."""

from __future__ import annotations

from typing import Any

import pytest

from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.launch.command import serve_arguments, serve_command
from catalogs.models.catalog import list_models, load_model
from catalogs.models.files import ModelFacts, read_facts
from catalogs.models.spec import Checkpoint
from planner.answer.answer_schema import same_model

LISTED = [(alias, c) for alias in list_models() for c in load_model(alias).checkpoints]


def words(model: str, **keys: Any) -> list[str]:
    return serve_arguments(resolve(Deployment(model=model, hardware="h100x8", **keys))).words


@pytest.mark.parametrize(("alias", "checkpoint"), LISTED, ids=[c.repository for _, c in LISTED])
def test_a_listed_checkpoint_is_priced_as_it_is_stored(alias: str, checkpoint: Checkpoint) -> None:
    """The storage that a plan simulates is that of the checkpoint it names, and never the model's own."""
    model = load_model(alias)
    assert checkpoint in model.checkpoints
    assert checkpoint.format.dtype != model.weight_dtype
    assert model.weight_format(checkpoint.format.dtype) == checkpoint.format
    assert checkpoint.repository != checkpoint.of
    assert load_model(checkpoint.of).name == alias


def test_checkpoints_are_not_inherited() -> None:
    """The checkpoints of Llama 3.1 70B hold other weights than those of Llama 3.3 70B, which has the same shape."""
    assert read_facts("llama3.3-70b").base == "llama3.1-70b"
    ours, theirs = ({c.repository for c in load_model(f"llama3.{minor}-70b").checkpoints} for minor in (1, 3))
    assert ours
    assert theirs
    assert not ours & theirs
    assert load_model("llama3.1-8b-fp8").checkpoints == ()


def test_an_entry_that_already_is_a_checkpoint_lists_the_same_repository() -> None:
    """`entry` and `repository` agree where the catalog knows the checkpoint under a name of its own."""
    for alias in list_models():
        for stated in read_facts(alias).checkpoints:
            if stated.entry is not None:
                assert load_model(stated.repository).name == stated.entry


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_start_command_serves_the_checkpoint(engine: str) -> None:
    made = words("meta-llama/Llama-3.3-70B-Instruct", engine=engine, weight_dtype="fp8", tensor_parallel=2)
    assert "nvidia/Llama-3.3-70B-Instruct-FP8" in made
    assert "--quantization" not in made
    assert "meta-llama/Llama-3.3-70B-Instruct" not in made


def test_the_plans_kv_cache_dtype_wins_over_that_of_the_checkpoint() -> None:
    """ModelOpt's checkpoints declare an fp8 KV cache, which vLLM follows unless it is given another."""
    given: dict[str, Any] = {"weight_dtype": "fp8", "kv_dtype": "bf16", "tensor_parallel": 2}
    made = words("llama3.3-70b", **given)
    assert made[made.index("--kv-cache-dtype") + 1] == "bfloat16"
    assert "--kv-cache-dtype" not in words("qwen3-32b", **given)  # declares none, so "auto" is 16 bit


def test_without_a_checkpoint_the_engine_quantises() -> None:
    made = serve_command(resolve(Deployment(model="qwen2.5-14b", hardware="h100x1", weight_dtype="fp8")))
    assert "--quantization fp8" in made.command
    assert any("no published fp8 checkpoint" in note for note in made.notes)


def test_the_notes_name_the_checkpoint_and_whose_weights_it_holds() -> None:
    base, own = (
        serve_command(resolve(Deployment(model=model, hardware="h100x1", weight_dtype="fp8"))).notes
        for model in ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct")
    )
    assert all(any("nvidia/Llama-3.1-8B-Instruct-FP8" in note for note in notes) for notes in (base, own))
    assert any("holds the weights of meta-llama/Llama-3.1-8B-Instruct, not of" in note for note in base)
    assert any("the instruction-tuned sibling" in note and "--precision native" in note for note in base)
    assert not any("not of" in note for note in own)


def test_a_model_keeps_the_id_by_which_it_is_named() -> None:
    assert load_model("Meta-Llama/llama-3.1-8b-instruct").hf_id == "meta-llama/Llama-3.1-8B-Instruct"
    assert load_model("llama3.1-8b").hf_id == "meta-llama/Llama-3.1-8B"
    assert words("meta-llama/Llama-3.1-8B-Instruct")[2] == "meta-llama/Llama-3.1-8B-Instruct"


def test_a_server_of_the_checkpoint_serves_the_planned_model() -> None:
    assert same_model("nvidia/Llama-3.1-8B-Instruct-FP8", "meta-llama/Llama-3.1-8B")
    assert not same_model("nvidia/Llama-3.1-70B-Instruct-FP8", "meta-llama/Llama-3.1-8B")


def test_a_checkpoint_states_its_storage_once() -> None:
    one = {"repository": "a/b-FP8", "of": "a/b", "source": "s", "as_of": "2026-01-01"}
    block = {"source": "s", "as_of": "2026-01-01", "checkpoints": [one]}
    with pytest.raises(ValueError, match="exactly one of: entry, weights"):
        ModelFacts.model_validate(block)
