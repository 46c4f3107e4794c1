"""The command `plan deploy`: the files that start a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.options import Alternative, AnswerPath, writable, write_result


def deploy(
    answer: AnswerPath,
    target: Annotated[
        str,
        typer.Option(
            help="Target: vllm, compose, kubernetes, leaderworkerset, kserve, llm-d, ray-serve, triton, sglang, "
            "llama.cpp, or for embedding networks text-embeddings-inference."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to create.")],
    alternative: Alternative = 0,
    image: Annotated[str | None, typer.Option(help="Container image (default: the engine's own).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing deployment folder.")] = False,
    json_file: Annotated[
        str | None,
        typer.Option(
            "--json", metavar="FILE", help="Write a summary of the files as JSON; - for stdout.", callback=writable
        ),
    ] = None,
) -> None:
    """Write the files that start a plan, its predictions, and a benchmark that checks them."""
    from planner.cli.screens.studies import show_deployment
    from planner.deploy.files import check_folder
    from planner.deploy.package import write_deployment
    from planner.networks.answer_file import read_network_answer

    of_network = read_network_answer(answer)
    if of_network is not None:
        from planner.networks.deploy import write_network_deployment
        from planner.networks.screen import show_files

        check_folder(out, force)
        files = write_network_deployment(of_network, target, out, alternative, force)
        write_result({"folder": str(out), **files.document()}, json_file, lambda: show_files(files, out))
        return
    package = write_deployment(answer, target, out, alternative, image, force)
    write_result({"folder": str(out), **package.document()}, json_file, lambda: show_deployment(package, out))
