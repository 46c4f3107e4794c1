"""The command `plan verify`: measured runs compared with their plan."""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.options import Alternative, JsonTo, LanguageModelAnswerPath, language_model_answer, write_result


def verify(
    answer: LanguageModelAnswerPath,
    results: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE",
            help="Result of vllm bench serve, SGLang bench_serving, GuideLLM, AIPerf or inference-perf; repeatable.",
        ),
    ],
    served: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the model in the results, if it differs from the plan's."),
    ] = None,
    alternative: Alternative = 0,
    json_file: JsonTo = None,
) -> None:
    """Compare measured latencies with their predicted intervals; exit status 1 if one lies outside.

    Runs at other rates or with a fixed concurrency are simulated on the plan's deployment. Results of another model or
    of other lengths are refused.
    """
    from calibration.importers.load_clients.model_name import measured_model
    from calibration.importers.load_clients.results import measured_results
    from planner.answer.answer_schema import chosen
    from planner.cli.screens.verify import show_runs
    from planner.verify.measured_load import LoadSimulator
    from planner.verify.prediction import Prediction
    from planner.verify.verification import runs_document
    from planner.verify.verification import verify as compare

    read = language_model_answer(answer)
    prediction = Prediction.of(read, chosen("verify", read, alternative))
    simulator = lru_cache(maxsize=1)(partial(LoadSimulator.of, prediction, alternative))
    runs = [(run, measured_model(file)) for file in results for run in measured_results(file)]
    found = [compare(prediction, run, model, simulator, served) for run, model in runs]
    write_result(runs_document(found), json_file, lambda: show_runs(found))
    raise typer.Exit(0 if all(each.holds for each in found) else 1)
