"""Plans for workloads with images: every candidate serves them, and their encoding costs capacity."""

from __future__ import annotations

from itertools import pairwise

import pytest

from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment, Multimodal
from catalogs.errors import InputError
from catalogs.launch.writing.vllm import vllm_arguments
from catalogs.models.catalog import load_model
from planner.answer.answer_schema import Answer
from planner.answer.guess import guess_plan
from planner.evaluation.multi_hardware import open_evaluator
from planner.evaluation.varied_workload import VariedWorkload
from planner.pipeline import make_plan
from planner.problem.overrides import Overrides
from planner.problem.request import PlanRequest, SearchOptions
from planner.problem.slo import parse_slos
from tests.planner.short_runs import shortened

SMALL = "{arrivals: {poisson: {}}, input_tokens: 200, output_tokens: 20, images: {per_request: 1, resolution: 448x448}}"
LARGE = SMALL.replace("448x448", "1344x1344")


def asked(workload: str = SMALL, model: str = "qwen2.5-vl-7b", **more: object) -> PlanRequest:
    return PlanRequest(
        model=model,
        hardware="h100",
        slos=parse_slos(["e2e.p99=5s"]),
        workload=workload,
        precisions=("native",),
        search=SearchOptions(trials=1),
        **more,  # type: ignore[arg-type]
    )


def answer_to(request: PlanRequest) -> Answer:
    evaluator = open_evaluator(request)
    with shortened(100):
        return make_plan(request, evaluator, evaluator.elsewhere)


def test_every_candidate_of_a_workload_with_images_serves_them() -> None:
    request = asked()
    assert request.modalities == ("image",)
    found = open_evaluator(request).space()
    assert found
    assert all(candidate.rest.values["multimodal"] == {"modalities": ["image"]} for candidate in found)
    text = asked("lmsys-turns")
    assert not text.modalities
    assert not any("multimodal" in candidate.rest.values for candidate in open_evaluator(text).space())
    own = asked(fixed=Overrides.of({"multimodal": {"encoder_parallel": "data"}}))
    assert own.further_keys.values == {"multimodal": {"encoder_parallel": "data"}}


def test_a_plan_answers_with_the_tokens_of_the_images() -> None:
    found = answer_to(asked(requests_per_s=2.0)).document()
    rule = load_model("qwen2.5-vl-7b").vision.rules.image  # type: ignore[union-attr]
    assert rule is not None
    assert found["feasible"]
    assert found["best"]["deployment"]["multimodal"]["encoder_parallel"] == "weights"
    assert found["workload"]["input_tokens"]["mean"] == 200 + rule.layout(448, 448).tokens


def test_more_pixels_carry_less_in_closed_forms_and_in_the_guess() -> None:
    rates, guesses = [], []
    for workload in (SMALL, LARGE):
        request = asked(workload, requests_per_s=2.0)
        evaluator = open_evaluator(request)
        rates.append(evaluator.fluid_requests_per_s(evaluator.space()[0]))
        sized = guess_plan(request).sized
        assert sized is not None
        guesses.append(sized.capacity_per_s)
    assert rates[0] > 2 * rates[1]
    assert guesses[0] > 2 * guesses[1]


def test_the_closed_form_counts_the_encoder() -> None:
    """A prompt of as many tokens of text has a higher capacity."""
    imaged = asked(LARGE)
    tokens = int(imaged.read_workload().lengths().input_tokens.mean)
    text = asked(f"{{arrivals: {{poisson: {{}}}}, input_tokens: {tokens}, output_tokens: 20}}")
    with_, without = (open_evaluator(request) for request in (imaged, text))
    rate, plain = (each.fluid_requests_per_s(each.space()[0]) for each in (with_, without))
    assert 0.4 * plain < rate < 0.9 * plain


def test_longer_texts_leave_the_images_as_they_are() -> None:
    read = asked().read_workload()
    plain, varied = (w.materialise(n_requests=3) for w in (read, VariedWorkload.of(read, input_factor=2.0)))
    assert (varied.input_tokens - plain.input_tokens).tolist() == [200, 200, 200]
    half = VariedWorkload.of(read, shared=0.5).materialise(n_requests=3)
    assert half.media is not None
    assert half.media.of_request(0)[0].start == 96  # whole blocks of half of the text


def test_a_model_that_reads_no_images_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match=r"no tower of this model that reads them: got 'llama3\.1-8b'"):
        open_evaluator(asked(model="llama3.1-8b"))


def test_the_launch_says_what_is_served() -> None:
    """As planned: without images the engine reserves no memory for them."""
    written = Deployment(model="qwen3-vl-8b", hardware="h100x4", tensor_parallel=4)
    flags = {}
    for name, block in (
        ("text", None),
        ("weights", Multimodal()),
        ("image", Multimodal(modalities=("image",))),
        ("data", Multimodal(encoder_parallel="data")),
    ):
        flags[name] = vllm_arguments(resolve(written.model_copy(update={"multimodal": block}))).flag_words
    assert '{"image": 0, "video": 0}' in flags["text"]
    assert '{"video": 0}' in flags["image"]
    assert not any(flag.startswith(("--limit-mm", "--mm")) for flag in flags["weights"])
    assert ("--mm-encoder-tp-mode", "data") in list(zip(flags["data"], flags["data"][1:], strict=False))
    voxtral = vllm_arguments(resolve(Deployment(model="voxtral-mini-3b", hardware="h100"))).flag_words
    assert ("--load-format", "mistral") in list(pairwise(voxtral))
    assert '{"audio": 0}' in voxtral
    plain = vllm_arguments(resolve(Deployment(model="llama3.1-8b", hardware="h100")))
    assert not any(flag.startswith(("--limit-mm", "--mm")) for flag in plain.flag_words)
