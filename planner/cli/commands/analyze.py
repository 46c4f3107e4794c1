"""The command `plan analyze`: a breakdown of one engine step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from catalogs.ui.shared_options import option, options_of
from planner.cli.options import OUTPUT, JsonBeside, write_result

if TYPE_CHECKING:
    from planner.networks.studies.analysis import JobQuery

#: Default tokens per sequence. A judgement: a short conversation.
CONTEXT: Final = 1024

STAGE: Final = "decode"

_WEIGHT_DTYPE = "Data type of the weights, or format of a network: bf16, fp8, int4, ... (default: the model's own)."

_RESOLUTION = "Size of each item of --images: 1024x1024, a video of 32 frames 640x360x32, audio 30s."

_MODE = "Execution of a network: eager, compiled or tensorrt (default: compiled)."

_PUBLISHED = "Print one decode step in the conventions of a published table."

_step, _network, _output = options_of("Step of a language model"), options_of("Job of a network"), options_of(OUTPUT)


def analyze(
    model: Annotated[str, option(None, "Model: alias, Hugging Face id, or path of a config.json.")],
    hw: Annotated[str, option(None, "Hardware of one replica, e.g. h100, h100x8.")],
    batch: Annotated[int, option("N", "Sequences in the step, or jobs of a network together.")] = 1,
    engine: Annotated[str | None, option(None, "Serving engine (default: vllm where it serves the model).")] = None,
    weight_dtype: Annotated[str | None, option(None, _WEIGHT_DTYPE)] = None,
    tensor_parallel: Annotated[int | None, option("N", "Accelerators of the replica (default: all in --hw).")] = None,
    stage: Annotated[str, _step("NAME", "Stage of inference: decode or prefill.")] = STAGE,
    context: Annotated[int, _step("N", "Tokens per sequence; for prefill, the prompt length.")] = CONTEXT,
    kv_dtype: Annotated[str | None, _step("DTYPE", "Data type of the KV cache (default: the engine's).")] = None,
    images: Annotated[int, _step("N", "Images, videos or pieces of audio at the start of every prompt (prefill).")] = 0,
    resolution: Annotated[str, _step("SIZE", _RESOLUTION)] = "1024x1024",
    job: Annotated[str | None, _network("SIZES", "Job of a network: 1280x720x81, or sizes as tokens=77.")] = None,
    steps: Annotated[int | None, _network("N", "Denoising steps of the job of a network.")] = None,
    mode: Annotated[str | None, _network("NAME", _MODE)] = None,
    published: Annotated[bool, _output(None, _PUBLISHED, "--published")] = False,
    json_file: JsonBeside = None,
    html: Annotated[Path | None, _output("FILE", "Write an HTML page with the roofline, readable offline.")] = None,
) -> None:
    """Break one step down by operator: work, bytes, bound, time, memory, and scaling.

    Figures refer to one accelerator of one replica. Example:
    plan analyze --model llama3.1-70b --hw h100x4 --batch 64 --context 2048
    """
    from catalogs.deployments.encoder_decoders import default_engine
    from catalogs.deployments.network_deployment import is_network
    from catalogs.errors import InputError
    from catalogs.io.output_files import check_targets
    from planner.cli.screens.analysis import show
    from planner.studies import step_analysis as analysis

    check_targets(json_file, html=html)
    if is_network(model):
        of_tokens = {
            "--context": context != CONTEXT,
            "--stage": stage != STAGE,
            "--kv-dtype": kv_dtype is not None,
            "--tensor-parallel": tensor_parallel is not None,
            "--engine": engine is not None,
            "--images": images > 0,
            "--published": published,
        }
        for option, is_given in of_tokens.items():
            if is_given:
                raise InputError(f"{option} is for language models, and {model} is a network", option, "--job SIZES")
        from planner.networks.studies.analysis import JobQuery

        _analyze_job(JobQuery(model, hw, batch, job, steps, weight_dtype, mode or "compiled"), json_file, html)
        return
    for option, value in (("--job", job), ("--steps", steps), ("--mode", mode)):
        if value is not None:
            raise InputError(f"{option} is for networks, and {model} is a language model", value, "--context N")
    engine = engine or default_engine(model, hw)
    own = weight_dtype, kv_dtype, tensor_parallel, images, resolution
    query = analysis.StepQuery(model, hw, batch, context, stage, engine, *own)
    if published:
        if html is not None:
            raise InputError("the published table has no page", str(html), hint="leave out --html")
        document = analysis.published_document(query)
    else:
        found = analysis.analyze(query)
        document = analysis.document(found)
        if html is not None:
            from planner.report.analysis_page import write_analysis

            write_analysis(found, html)
    write_result(document, json_file, lambda: show(document))


def _analyze_job(query: JobQuery, json_file: str | None, html: Path | None) -> None:
    """Break one job of a network down by stage and kernel."""
    from planner.cli.screens.analysis import show
    from planner.networks.studies.analysis import analyze_job, job_document

    found = analyze_job(query)
    document = job_document(found)
    if html is not None:
        from planner.networks.report.analysis import write_job_analysis

        write_job_analysis(found, html)
    write_result(document, json_file, lambda: show(document))
