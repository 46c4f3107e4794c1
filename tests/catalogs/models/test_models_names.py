"""What a model may be called, and what its file may say."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import yaml

from catalogs.errors import InputError
from catalogs.models import files as model_files
from catalogs.models.catalog import list_models, load_model
from catalogs.models.files import ModelFacts, load_entry, read_facts
from catalogs.models.names import MODELS, ModelNames, load_names, normalised_name, stated_kind

ALIASES = list_models()

#: Named in the project's requirements, as a user might write them.
REQUIRED = [
    "OPT-350m",
    "OPT-13B",
    "OPT-66B",
    "OPT-175B",
    "BLOOM-560m",
    "T5-small",
    "BART-base",
    "Llama-2-7B",
    "Llama-2-13B",
    "Llama-2-70B",
    "CodeLlama-34B",
    "Llama-3.1-8B",
    "Llama-3.1-70B",
    "Llama-3.1-405B",
    "Llama-3.1-405B-FP8",
    "Llama-3.3-70B",
    "Llama-4-Scout",
    "Llama-4-Maverick",
    "Mistral-7B",
    "Mistral-Nemo",
    "Mistral-Large",
    "Mixtral-8x7B",
    "Mixtral-8x22B",
    "Qwen2.5-0.5B",
    "Qwen2.5-7B",
    "Qwen2.5-72B",
    "Llama-3.2-1B",
    "Llama-3.2-3B",
    "Qwen3-8B",
    "Qwen3-14B",
    "Qwen3-32B",
    "Qwen3-30B-A3B",
    "Qwen3-235B-A22B",
    "Qwen3-235B-A22B-FP8",
    "Gemma-3-12B",
    "Gemma-3-27B",
    "DeepSeek-V3",
    "DeepSeek-R1",
    "DeepSeek-V3.1",
    "gpt-oss-20B",
    "gpt-oss-120B",
    "Phi-3",
    "Phi-4",
    "Yi-34B",
    "Kimi-K2",
    "Kimi-K2.5",
    "MiniMax-M2.5",
    "GLM-5",
    "Qwen3.5-397B-A17B",
    "nvidia/NVIDIA-Nemotron-Nano-12B-v2",
    "zai-org/GLM-5",
    "zhipuai/GLM-5",
    "nvidia/DeepSeek-R1-NVFP4",
    "nvidia/DeepSeek-V3.1-NVFP4",
    "nvidia/Qwen3-32B-NVFP4",
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8",
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8",
    "Qwen/Qwen3-30B-A3B-Instruct-2507",
]

# ---- names


@pytest.mark.parametrize("name", REQUIRED)
def test_required_names_resolve_in_any_case(name: str) -> None:
    assert load_model(name.lower()) == load_model(name.upper()) == load_model(name)


@pytest.mark.parametrize(
    ("text", "alias"),
    [
        ("llama3.1-405b", "llama3.1-405b"),
        ("meta-llama/Llama-3.1-405B-Instruct", "llama3.1-405b"),
        ("META-LLAMA/meta-llama-3.1-8b", "llama3.1-8b"),
        ("Meta-Llama-3.1-8B-Instruct", "llama3.1-8b"),
        ("meta-llama/Llama-2-7b", "llama-2-7b"),
        ("Llama-2-70b-chat-hf", "llama-2-70b"),
        ("llama2-70b", "llama-2-70b"),
        ("Llama-3.1-405B-Instruct-FP8", "llama3.1-405b-fp8"),
        ("nvidia/Llama-3.1-405B-Instruct-FP8", "llama3.1-405b-fp8-nvidia"),
        ("google/gemma-3-27b", "gemma-3-27b"),
        ("Mistral-7B-Instruct-v0.1", "mistral-7b-v0.1"),
        ("Qwen3-235B-A22B-Instruct-2507", "qwen3-235b-a22b-2507"),
        ("Qwen3-235B-A22B", "qwen3-235b-a22b"),
        (" gpt-oss-20b ", "gpt-oss-20b"),
    ],
)
def test_spellings(text: str, alias: str) -> None:
    assert load_model(text).name == alias


@pytest.mark.parametrize(
    "text", ["Qwen/Qwen3-Embedding-8B", "Qwen/Qwen3-Reranker-4B", "intfloat/e5-mistral-7b-instruct", "claude-3"]
)
def test_a_name_of_another_kind_or_family_has_no_nearest_model(text: str) -> None:
    with pytest.raises(InputError, match="unknown model") as caught:
        load_model(text)
    assert caught.value.nearest is None
    assert "catalog list" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Qwen/Qwen3-Embedding-8B", "text embedding"),
        ("BAAI/bge-reranker-v2-m3", "text reranking"),
        ("nomic-ai/nomic-embed-text-v1.5", "text embedding"),
        ("embedding/llama-3.1-8b", None),  # the publisher states no kind
        ("embedded-llama", None),
    ],
)
def test_a_word_of_a_name_states_its_kind(name: str, kind: str | None) -> None:
    assert stated_kind(name) == kind


def test_no_language_model_of_the_catalog_states_another_kind() -> None:
    assert [name for name in load_names().all_names() if stated_kind(name) is not None] == []


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("llama3.1-8", "llama3.1-8b"),
        ("lama3.1-8b", "llama3.1-8b"),
        ("deepsek-v3", "deepseek-v3"),
        ("gpt-oss:20b", "gpt-oss-20b"),
        ("openai/Llama-3.1-8B", "llama3.1-8b"),  # not theirs
    ],
)
def test_unknown_names_say_the_nearest_on_one_line(text: str, nearest: str) -> None:
    with pytest.raises(InputError) as caught:
        load_model(text)
    assert caught.value.nearest == nearest
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", " ", "xyzzy", "./nowhere", "/no/such/config.json", "nowhere.json", "a/b/c"])
def test_nonsense_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError):
        load_model(text)


def test_ambiguous_names_are_refused() -> None:
    names = ModelNames({"a-7b-x": ("p/Model-7B",), "b-7b-x": ("q/Model-7B-Instruct",)})
    with pytest.raises(InputError, match="a-7b-x, b-7b-x"):
        names.similar("model-7b")
    assert names.similar("q/model-7b") == "b-7b-x"


def test_index_and_files_agree() -> None:
    assert {p.stem for p in MODELS.glob("*.yaml")} - {"names"} == set(ALIASES)
    names = load_names()
    every = [n.lower() for alias, others in names.aliases.items() for n in (alias, *others)]
    assert len(every) == len(set(every))
    assert all("/" in names.hf_id(a) for a in ALIASES)
    plains = [normalised_name(a) for a in ALIASES]
    assert len(plains) == len(set(plains))


def test_finding_a_model_reads_only_its_own_files(monkeypatch: pytest.MonkeyPatch) -> None:
    load_entry.cache_clear()
    load_names.cache_clear()
    opened: list[str] = []
    original = Path.open

    def counted(path: Path, *args: object, **kwargs: object) -> object:
        opened.append(path.name)
        return original(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "open", counted)
    load_model("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8")
    chain = ["qwen3-235b-a22b-2507-fp8.yaml", "qwen3-235b-a22b-2507.yaml", "qwen3-235b-a22b.yaml"]
    # of published checkpoints, which are entries of their own
    storages = {"qwen3-235b-a22b-fp8.yaml", "qwen3-235b-a22b-nvfp4.yaml"}
    assert opened[0] == "names.yaml"
    assert set(opened) == {"names.yaml", *chain} | storages


def test_every_validated_model_resolves(validation_data: Path) -> None:
    deployments = [yaml.safe_load(p.read_text())["model"] for p in validation_data.glob("*/deployment.yaml")]
    rows = [r["model"] for p in validation_data.glob("steady_state/*.csv") for r in csv.DictReader(p.open())]
    names = {*deployments, *rows}
    assert len(names) > 15
    for name in names:
        load_model(name)


# ---- strictness of the files


def file_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, object]) -> str:
    """A copy of an entry with planted changes; its alias."""
    raw = yaml.safe_load((MODELS / "llama3.1-8b.yaml").read_text())
    (tmp_path / "planted.yaml").write_text(yaml.safe_dump(raw | change))
    monkeypatch.setattr(model_files, "MODELS", tmp_path)
    return "planted"


@pytest.mark.parametrize(
    "change",
    [
        {"hiden_size": 4096},
        {"hidden_size": 0},
        {"hidden_size": "many"},
        {"layers": [{"count": 1, "attention": {"heads": 8, "kv_heads": 8, "head_dim": 8, "window": 3}}]},
        {"weights": {"dtype": "fp9", "source": "x"}},
        {"weights": {"dtype": "fp8", "source": "x", "unquantized": {"attention": 1.5}}},
        {"weights": {"dtype": "fp8", "source": "x", "unquantized": {"attn": 1.0}}},
        {"source": None},
        {"published": {"total": -1, "source": "x"}},
    ],
)
def test_planted_faults_in_a_file_are_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, object]
) -> None:
    alias = file_of(tmp_path, monkeypatch, change)
    with pytest.raises(InputError, match=r"planted\.yaml") as caught:
        read_facts(alias)
    assert "\n" not in str(caught.value)


def test_an_unchanged_copy_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(read_facts(file_of(tmp_path, monkeypatch, {})), ModelFacts)


def test_a_layer_has_one_mixer() -> None:
    raw = yaml.safe_load((MODELS / "deepseek-v3.yaml").read_text())
    raw["layers"][0]["attention"] = {"heads": 1, "kv_heads": 1, "head_dim": 1}
    with pytest.raises(InputError, match="at most one mixer"):
        ModelFacts.model_validate(raw).changes()
