"""Speculative decoding as a choice: what is said of it, how rounds count as tokens, and one question end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from catalogs.deployments.resolve import CatalogLookup, resolve
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.io.yaml_files import validate_as
from catalogs.launch.command import serve_command
from catalogs.ui.entry_point import run_command
from planner.cli.main import app
from planner.problem.candidate import drafts_words
from planner.problem.request import PlanRequest
from planner.problem.slo import parse_slos
from planner.space.candidates import candidates
from planner.space.speculative import parse_drafts, per_token
from simulator.core.batch import BatchShape

SAID = "method=ngram,k=3,acceptance=0.5"
SLOS = parse_slos(["tpot.mean=50ms"])


def speculating(hardware: str) -> Deployment:
    return validate_as(
        Deployment, {"model": "llama3.1-8b", "hardware": hardware, "speculative": parse_drafts(SAID)}, ""
    )


def test_drafts_in_words() -> None:
    found = parse_drafts("method=eagle3,k=2,acceptance=[0.7,0.4],model=some/head")
    assert found == {
        "method": "eagle3",
        "num_speculative_tokens": 2,
        "acceptance": [0.7, 0.4],
        "model": "some/head",
    }
    assert drafts_words(found) == ", drafts of 2 by eagle3"
    assert drafts_words(None) == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("method=ngram,k=3", "measured acceptance"),
        ("ngram", "KEY=VALUE"),
        ("metod=ngram,k=3,acceptance=0.5", "method"),
        ("method=ngram,k=none,acceptance=0.5", "num_speculative_tokens"),
    ],
)
def test_what_is_missing_is_one_line(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_drafts(text)


def test_one_more_candidate_for_each_placement() -> None:
    names = CatalogLookup.of("llama3.1-8b", "vllm", "h100x8")
    plain = candidates(PlanRequest(model="llama3.1-8b", hardware="h100x8", slos=SLOS), names)
    both = candidates(PlanRequest(model="llama3.1-8b", hardware="h100x8", slos=SLOS, speculative=SAID), names)
    drafting = [c for c in both if c.drafts]
    assert [c for c in both if not c.drafts] == plain
    assert len(drafting) == len({c.placement for c in plain})
    written = drafting[0].deployment("llama3.1-8b", "vllm").speculative
    assert written is not None
    assert written.num_speculative_tokens == 3
    assert "speculating" in drafting[0].words
    assert len({(c.family, c.kv_dtype) for c in both}) == 2 * len({(c.family, c.kv_dtype) for c in plain})


def test_what_drafts_do_not_go_with_has_none() -> None:
    names = CatalogLookup.of("llama3.1-8b", "vllm", "h100x8")
    request = PlanRequest(model="llama3.1-8b", hardware="h100x8", slos=SLOS, speculative=SAID, also=("pipelines",))
    found = candidates(request, names)
    assert {c.layout.pipeline_parallel for c in found if c.drafts} == {1}
    assert max(c.layout.pipeline_parallel for c in found) > 1


def test_a_round_gives_several_tokens() -> None:
    """Three drafts at one half: 1 + 1/2 + 1/4 + 1/8 tokens a round on average, four at best."""
    written = speculating("h100x8")
    resolved = resolve(written)
    seen: list[int] = []

    def cycle_s(shape: BatchShape) -> float:
        seen.append(shape.queries)
        return 15.0

    decode, prompt = BatchShape(decodes=2, logits=2), BatchShape(prefill_tokens=8, prefill_chunks=1)
    assert per_token(cycle_s, resolved)(decode) == pytest.approx(15.0 / 1.875)
    assert per_token(cycle_s, resolved, most=True)(decode) == pytest.approx(15.0 / 4)
    assert per_token(cycle_s, resolved)(prompt) == 15.0
    assert seen == [4, 4, 1]
    plain = resolve(Deployment(model="llama3.1-8b", hardware="h100x8"))
    assert per_token(cycle_s, plain) is cycle_s


def test_the_command_starts_with_drafts() -> None:
    written = speculating("h100")
    command = serve_command(resolve(written)).command
    flag = command.partition("--speculative-config ")[2]
    assert json.loads(flag.strip("'")) == {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}


def test_drafts_that_are_good_are_chosen(tmp_path: Path) -> None:
    target, short = tmp_path / "a.json", tmp_path / "short.yaml"
    short.write_text("arrivals: {poisson: {}}\ninput_tokens: {constant: 64}\noutput_tokens: {constant: 24}\n")
    asked = ["--model", "llama3.1-8b", "--hw", "rtx4090", "--slo", "tpot.mean=50ms", "--workload", str(short)]
    drafts = [
        "--objective",
        "latency",
        "--set",
        "speculative=method=ngram,k=3,acceptance=0.9",
        "--set",
        "search.trials=4",
        "--precision",
        "fp8",
    ]
    fixed = ["--set", "max_num_seqs=64", "--set", "kv_dtype=bf16"]
    assert run_command("plan", app, [*asked, *drafts, *fixed, "--json", str(target)]) == 0
    answer = json.loads(target.read_text())
    best = answer["best"]
    assert best["deployment"]["speculative"]["method"] == "ngram"
    assert "--speculative-config" in best["command"]
    assert "--set speculative=method=ngram" in answer["reproduce"]["command"]
    plain = [p for p in answer["alternatives"] if not p["deployment"]["speculative"]]
    assert plain
    assert plain[0]["metrics"]["tpot_s"]["mean"] > best["metrics"]["tpot_s"]["mean"]
