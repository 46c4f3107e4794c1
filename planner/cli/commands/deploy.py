"""`plan deploy`: the files that start a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.options import Alternative, AnswerPath, put


def deploy(
    answer: AnswerPath,
    target: Annotated[
        str,
        typer.Option(
            help="vllm, compose, kubernetes, leaderworkerset, kserve, llm-d, ray-serve, triton, sglang, llama.cpp."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write; made here.")],
    alternative: Alternative = 0,
    image: Annotated[str | None, typer.Option(help="Container image (default: the engine's own).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a deployment that is there.")] = False,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="What was written, as JSON; - for stdout.")
    ] = None,
) -> None:
    """Files that start the plan, the benchmark that would verify it, and what it predicts."""
    from catalogs.io.output_files import check_targets
    from planner.cli.screens.comparison import show_deployment
    from planner.deploy.files import check_folder, write_folder
    from planner.deploy.package import pack
    from planner.sections.full_answer import read_answer

    check_targets(json_file)
    check_folder(out, force)
    package = pack(read_answer(answer), answer, target, alternative, image)
    write_folder(out, package.files, force)
    put({"folder": str(out), **package.document()}, json_file, lambda: show_deployment(package, out))
