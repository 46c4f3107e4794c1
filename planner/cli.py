"""`plan`: the command. `plan --model M --slo S --hw H` is the main job; other jobs are subcommands."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catalogs.command import INTERRUPTED, run_command
from planner.commands.analyze import analyze
from planner.commands.compare import compare
from planner.commands.deploy import deploy
from planner.commands.drift import drift
from planner.commands.explain import explain
from planner.commands.front import front
from planner.commands.report import report
from planner.commands.spares import spares
from planner.commands.verify import verify
from planner.commands.whatif import whatif

if TYPE_CHECKING:
    from planner.answer import Answer
    from planner.request import PlanRequest

#: Under which heading `plan --help` shows an option.
LOAD, CHOICE, PRICE = "Load", "Choice", "Price"
POWER, SEARCH, OUTPUT = "Power and carbon", "Search", "Output"

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find the deployment that serves a model within its latency objectives at the lowest cost or energy.",
)


@app.callback(invoke_without_command=True)
def plan(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Option(help="Alias, Hugging Face id, or a directory with a config.json.")
    ] = None,
    slo: Annotated[
        list[str] | None, typer.Option(help="METRIC.STAT=LIMIT, e.g. ttft.p99=2s; repeat or use commas.")
    ] = None,
    hw: Annotated[
        str | None, typer.Option(help="Hardware: h100x8, 2*h100x8, local; several with commas; or any.")
    ] = None,
    max_usd_per_hour: Annotated[
        float | None, typer.Option(help="Budget, US dollars per hour.", rich_help_panel=CHOICE)
    ] = None,
    workload: Annotated[str | None, typer.Option(help="Name, trace file or YAML file (default: chat).")] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests per second it must carry (default: all it can).", rich_help_panel=LOAD),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="W", help="Workload whose own rate changes with time, instead of both.", rich_help_panel=LOAD
        ),
    ] = None,
    users: Annotated[
        int | None, typer.Option(help="Users at once it must serve, instead of a rate.", rich_help_panel=LOAD)
    ] = None,
    think_time: Annotated[
        float, typer.Option(help="Seconds a user waits between answer and next request.", rich_help_panel=LOAD)
    ] = 0.0,
    survive: Annotated[
        str | None,
        typer.Option(
            metavar="N|node", help="Replicas (or nodes) whose loss the objectives must survive.", rich_help_panel=LOAD
        ),
    ] = None,
    objective: Annotated[
        str, typer.Option(help="cost, energy, carbon, throughput, goodput or latency.", rich_help_panel=CHOICE)
    ] = "cost",
    precision: Annotated[
        list[str] | None, typer.Option(help="Weight dtypes to choose from; native is one.", rich_help_panel=CHOICE)
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(help="Wider: disaggregated, pipelines, context, wide-experts; commas.", rich_help_panel=CHOICE),
    ] = None,
    speculative: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUE,..", help="Drafts, too: method=ngram,k=3,acceptance=0.6.", rich_help_panel=CHOICE
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A key of deployment.yaml all have; repeat.", rich_help_panel=CHOICE
        ),
    ] = None,
    price: Annotated[
        float | None, typer.Option(help="US dollars per hour of all the hardware named.", rich_help_panel=PRICE)
    ] = None,
    price_reading: Annotated[
        str, typer.Option(help="cheapest, median, list or spot.", rich_help_panel=PRICE)
    ] = "cheapest",
    cloud: Annotated[str | None, typer.Option(help="Take the price of this cloud.", rich_help_panel=PRICE)] = None,
    region: Annotated[str | None, typer.Option(help="Take the price of this region.", rich_help_panel=PRICE)] = None,
    commitment: Annotated[
        str, typer.Option(help="on-demand, spot, reserved-1y or reserved-3y.", rich_help_panel=PRICE)
    ] = "on-demand",
    discount: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Yours off on-demand for that commitment, e.g. 0.4.", rich_help_panel=PRICE),
    ] = None,
    spot_interruptions: Annotated[
        float | None,
        typer.Option(
            metavar="PER_HOUR", help="How often a spot instance is taken, by your records.", rich_help_panel=PRICE
        ),
    ] = None,
    spot_recovery: Annotated[
        float | None,
        typer.Option(metavar="S", help="Until its replacement serves (default: a cold start).", rich_help_panel=PRICE),
    ] = None,
    owned: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUE,..|FILE", help="Owned hardware: capex, years, power-price, ...", rich_help_panel=PRICE
        ),
    ] = None,
    requests_per_user_day: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="Requests of a user a day: gives the cost of a user-month.", rich_help_panel=PRICE
        ),
    ] = None,
    nodes_per_rack: Annotated[
        int | None, typer.Option(metavar="N", help="For the power of a rack.", rich_help_panel=POWER)
    ] = None,
    carbon_hours: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="CSV of gco2e_per_kwh by hour or timestamp, of your grid.", rich_help_panel=POWER
        ),
    ] = None,
    power_cap_w: Annotated[
        list[str] | None,
        typer.Option(metavar="W", help="Also under these power limits; repeat or use commas.", rich_help_panel=POWER),
    ] = None,
    grid: Annotated[
        str | None, typer.Option(help="Where the electricity comes from (default: us).", rich_help_panel=POWER)
    ] = None,
    engine: Annotated[str, typer.Option(help="Serving engine.", rich_help_panel=CHOICE)] = "vllm",
    trials: Annotated[int, typer.Option(help="Candidates to simulate at most.", rich_help_panel=SEARCH)] = 40,
    seed: Annotated[int, typer.Option(help="Seed of workload and search.", rich_help_panel=SEARCH)] = 0,
    study: Annotated[
        Path | None, typer.Option(help="Journal file: keeps the search, resumes and shares it.", rich_help_panel=SEARCH)
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="The same in any Optuna storage, e.g. sqlite:///s.db.", rich_help_panel=SEARCH)
    ] = None,
    distributed: Annotated[
        str | None,
        typer.Option(help="Simulate on a Ray cluster: ray://HOST:PORT, ray://local or auto.", rich_help_panel=SEARCH),
    ] = None,
    json: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the answer as JSON; - writes it to stdout.", rich_help_panel=OUTPUT),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as a page, too.", rich_help_panel=OUTPUT)
    ] = None,
    deployment_out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the chosen deployment, for `simulate`.", rich_help_panel=OUTPUT),
    ] = None,
) -> None:
    """plan --model llama3.1-405b --slo p99=2s --hw h100x8"""
    if context.invoked_subcommand is not None:
        return
    from catalogs.errors import InputError
    from catalogs.files import check_targets
    from planner.accounts import Accounts
    from planner.demand import NOTHING, Spare
    from planner.keys import Fixed
    from planner.load_curve import peak_of
    from planner.request import PlanRequest, Tariff
    from planner.slo import parse_slos

    for name, value in (("model", model), ("hw", hw)):
        if not value:
            raise InputError(f"--{name} is needed", None, "plan --model llama3.1-405b --slo p99=2s --hw h100x8")
    request = PlanRequest(
        model=model or "",
        hardware=hw or "",
        slos=parse_slos(slo or []),
        workload=trace or workload or "chat",
        requests_per_s=rate if trace is None else peak_of(trace, workload, rate, users),
        over_time=trace is not None,
        objective=objective,
        precisions=_listed(precision),
        also=_listed(also),
        fixed=Fixed.parse(settings or []),
        speculative=speculative,
        engine=engine,
        trials=trials,
        seed=seed,
        study=study,
        storage=storage,
        tariff=Tariff(price, price_reading, cloud, region, grid, commitment, discount),
        max_usd_per_hour=max_usd_per_hour,
        users=users,
        think_s=think_time,
        spare=NOTHING if survive is None else Spare.parse(survive),
        accounts=Accounts.parse(
            owned,
            carbon_hours,
            power_cap_w or [],
            spot_interruptions=spot_interruptions,
            spot_recovery_s=spot_recovery,
            requests_per_user_day=requests_per_user_day,
            nodes_per_rack=nodes_per_rack,
        ),
    )
    check_targets(json, deployment_out, study, html)
    if html is not None:  # said before the search, not after it
        from catalogs.html_page import need_plotly
        from planner.readable import need_readable_kinds

        need_plotly()
        need_readable_kinds("report", request.also)
    raise typer.Exit(answer_request(request, json, deployment_out, html, distributed))


def _listed(texts: list[str] | None) -> tuple[str, ...]:
    """Of an option that is repeated or has commas."""
    return tuple(part.strip() for text in texts or [] for part in text.split(","))


def answer_request(
    request: PlanRequest,
    json_to: str | None,
    deployment_to: Path | None = None,
    html_to: Path | None = None,
    distributed: str | None = None,
) -> int:
    """Plan, print or write; the exit status: 0 feasible, 1 not, 130 interrupted."""
    try:
        answer = _answer(request, distributed)
    except KeyboardInterrupt:
        print(f"interrupted{_kept(request)}", file=sys.stderr)
        return INTERRUPTED
    write_answer(answer, json_to, deployment_to)
    if html_to is not None:
        from planner.answer_file import parse_answer
        from planner.report.write import write_report

        write_report(parse_answer(answer.as_dict()), html_to, None)
    if answer.interrupted:
        print(f"interrupted: the best found so far is the answer{_kept(request)}", file=sys.stderr)
        return INTERRUPTED
    return 0 if answer.feasible else 1


def _answer(request: PlanRequest, distributed: str | None) -> Answer:
    """On this machine, or with the hands of a cluster."""
    from planner.plan import make_plan
    from planner.progress import said_meanwhile, search_progress
    from planner.second_core import shared, with_second_core
    from planner.storage import need_storage
    from planner.worlds import open_world

    if request.storage is not None:
        need_storage(request.storage)
    world = open_world(request)
    if distributed is None:
        with search_progress() as progress:
            return make_plan(request, world, world.elsewhere, progress, with_second_core, shared)
    from planner.ray_cluster import join_cluster

    with ExitStack() as stack:
        with said_meanwhile(f"joining {distributed}"):
            cluster = stack.enter_context(join_cluster(distributed))
        with search_progress(lambda: cluster.words) as progress:
            answer = make_plan(request, world, world.elsewhere, progress, cluster.crew)
    if cluster.said:
        print(cluster.said, file=sys.stderr)
    return answer


def _kept(request: PlanRequest) -> str:
    from planner.storage import without_password

    where = request.study or (request.storage and without_password(request.storage))
    return f"; the search so far is kept in {where}" if where else "; --study FILE would keep it"


def write_answer(answer: Answer, json_to: str | None, deployment_to: Path | None) -> None:
    """JSON to a file or stdout (and then nothing else there); the screen unless stdout is taken."""
    from catalogs.files import write_json, write_whole

    data = answer.as_dict()
    if deployment_to is not None and answer.feasible:
        import yaml

        chosen = data["best"]["deployment"] | {"kv_blocks": None}  # computed from memory again, as here
        write_whole(deployment_to, [yaml.safe_dump(chosen, sort_keys=False)])
    if json_to is not None:
        write_json(data, json_to)
    if json_to != "-":
        from planner.screen import show

        show(data)


app.command()(analyze)
app.command()(report)
app.command()(explain)
app.command()(front)
app.command()(deploy)
app.command()(compare)
app.command()(drift)
app.command()(spares)
app.command()(verify)
app.command()(whatif)


def main() -> None:
    """Entry point of the console script.

    Linear algebra has one thread: its matrices are small, and its threads spin where other processes have the cores.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported, which is later
    sys.exit(run_command("plan", app))


if __name__ == "__main__":
    main()
