"""The screen of a plan for agents: the deployment, its tier and routing, what agents see, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from catalogs.ui.terminal import PIPED, Line, labelled_rows
from catalogs.ui.words import counted, digits, dollars, duration_text, percent
from planner.agents.answer import AgentPlan, AgentsAnswer, AgentsRefusal, ComparedPlan, objective_text
from planner.answer.plan_schema import SloResult
from planner.evaluation.confidence import LEVEL, SEEDS
from planner.problem.interactivity import INTERACTIVITY
from planner.problem.latency_metrics import TPOT
from planner.sections.refusal_words import refused_lines
from planner.sections.section import interval_words, level_words, verdict_words

#: Other choices that the screen shows.
MOST_OTHERS: Final = 5


def show_agents(answer: AgentsAnswer) -> None:
    """Print the screen of an answer."""
    print(render(answer))


def render(answer: AgentsAnswer, width: int = PIPED) -> str:
    """Return the screen as plain text, each line at most `width` columns wide."""
    return "\n".join(row for label, text in _lines(answer) for row in labelled_rows(label, text, width))


def _lines(answer: AgentsAnswer) -> Iterator[Line]:
    best = answer.best
    yield "Request", question_words(answer)
    if answer.infeasible is None:
        yield "", ""
        yield "Recommended", best.words
        yield from plan_rows(answer)
    else:
        tried = f"{counted(answer.n_simulated, 'placement')} of {answer.n_placements} simulated"
        yield from refused_lines(
            answer.infeasible.binding_constraint,
            answer.slo_words,
            _closest(answer, answer.infeasible),
            answer.infeasible.what_would_meet_it,
            tried,
        )
    if answer.others:
        yield "Compared", f"the deployment above, then others: {compared_note(answer)}"
        for plan in (answer.compared, *answer.others[:MOST_OTHERS]):
            yield "", _compared_words(plan, answer.as_interactivity)
    for notice in answer.notices:
        yield "Note", notice
    runs = f"{counted(answer.n_runs, 'run')} of {answer.n_requests:,} requests in {answer.seconds:.0f} s"
    placements = f"{answer.n_simulated} of {answer.n_placements} placements simulated"
    yield "Search", f"{placements}, {runs}; sequences at the engine's default"


def question_words(answer: AgentsAnswer) -> str:
    """Return the question in one line."""
    request = answer.request
    load = f"{counted(answer.agents, 'agent')} of workload {request['workload']} at work"
    return f"{request['model']} on {request['hardware']}, {load}"


def _closest(answer: AgentsAnswer, refusal: AgentsRefusal) -> Iterator[Line]:
    """Yield the lines about the deployment that comes closest."""
    yield "Closest", answer.best.words
    yield from plan_rows(answer)
    for i, why in enumerate(refusal.why):
        yield "" if i else "Why", why


def plan_rows(answer: AgentsAnswer) -> Iterator[tuple[str, str]]:
    """Yield labels and values of the deployment of an answer under the load of its agents."""
    best = answer.best
    for row in best.objectives:
        yield "Objective", _objective_words(row, row.name in answer.as_interactivity, best.rejected_share)
    yield "KV tier", f"{best.tier}, {router_words(best)}"
    yield (
        "Cache",
        f"{share_words(best.hit_rate)} of prompt tokens found, {share_words(best.theoretical_hit_rate)} with no limits",
    )
    yield "Speed", _speed_words(best)
    work = f"{digits(best.requests_at_once)} requests under way at once, {digits(best.requests_per_s)} requests/s"
    yield "Sessions", f"{answer.agents} at once: {work}, {best.output_tokens_per_s:,.0f} output tokens/s"
    for label, times, noun in (("Per session", best.session_s, "sessions"), ("Per task", best.task_s, "tasks")):
        if times.p50 is not None and times.p90 is not None:
            most = duration_text(times.p50), duration_text(times.p90)
            yield label, f"half of the {noun} take at most {most[0]}, 90 % at most {most[1]}"
    yield "Capacity", _capacity_words(answer)
    if best.usd_per_hour is not None and best.usd_per_agent_hour is not None:
        each = f"${best.usd_per_agent_hour:,.3f} per hour and agent"
        task = "" if best.usd_per_task is None else f", {dollars(best.usd_per_task)} per task"
        tasks = f" ({digits(best.requests_per_task)} requests each, {best.tasks_per_hour:,.0f} tasks per hour)"
        yield "Cost", f"${best.usd_per_hour:,.2f} per hour, {each}{task}{tasks if task else ''}"


def router_words(plan: AgentPlan | ComparedPlan) -> str:
    """Return the routing of a plan in words."""
    if plan.replicas == 1:
        return "one replica"
    if plan.replicas == 2 and "prefill" in plan.words:
        return "one replica of each kind"
    return "routed by session" if plan.router == "session_affinity" else "routed in turn"


def _objective_words(row: SloResult, as_rate: bool, rejected_share: float) -> str:
    """Return an objective with its value, interval and limit, as a rate where it was written as one."""
    name, limit = objective_name(row.name, as_rate), objective_text(row.limit_s, as_rate)
    if row.value_s is None and rejected_share:
        return f"{name} is missed because {percent(rejected_share)} of the requests are rejected, limit {limit}"
    span = interval_words(row.ci_low_s, row.ci_high_s)
    if as_rate:
        low = "0" if row.ci_high_s is None else digits(1 / row.ci_high_s)
        span = f"{low} to {objective_text(row.ci_low_s, as_rate)}"
    interval = level_words(row.ci_level or LEVEL, span)
    bound = "at least" if as_rate else "at most"
    verdict = verdict_words(row, f"{bound} {objective_text(row.value_at_confidence_s, as_rate)}")
    return f"{name} = {objective_text(row.value_s, as_rate)} ({interval}), limit {limit}: {verdict}"


def objective_name(name: str, as_rate: bool) -> str:
    """Return the name of an objective as it was written."""
    return name.replace(TPOT.name, INTERACTIVITY, 1) if as_rate else name


def _speed_words(plan: AgentPlan) -> str:
    reached = [
        f"{words} of the requests reach {objective_text(1 / per_s, True)}"
        for words, per_s in (("half", plan.interactivity_p50), ("90 %", plan.interactivity_p90))
        if per_s is not None
    ]
    if plan.rejected_share:
        reached.append(f"{percent(plan.rejected_share)} of them are rejected and have no speed")
    return ", ".join(reached) or "unknown"


def _capacity_words(answer: AgentsAnswer) -> str:
    n = answer.capacity_agents
    if answer.capacity_is_least:
        return f"at least {counted(n, 'agent')} (the search ends there)"
    if n:
        return f"about {counted(n, 'agent')} on this deployment (within 10 %)"
    if answer.best.rejected_share and any(row.value_s is None for row in answer.best.objectives):
        return "none: requests are rejected however few agents are at work"
    return "not even one agent meets the objectives"


def compared_note(answer: AgentsAnswer) -> str:
    """Return how the compared plans were simulated, and why their shares of rejected requests may not be the first."""
    sure = percent(float(answer.request["confidence"]))
    text = f"values from one run each, with steps as slow as {sure} confidence requires"
    text += f", to rank them; they leave out how much runs differ, which the {SEEDS} runs that judge the first include"
    one_run, all_runs = percent(answer.compared.rejected_share), percent(answer.best.rejected_share)
    if one_run == all_runs:
        return text
    of_deployment = f"{one_run} of the requests of the deployment above are rejected"
    return f"{text}; in its one run {of_deployment}, in the {SEEDS} runs that judge it {all_runs}"


def _compared_words(plan: ComparedPlan, as_interactivity: list[str]) -> str:
    values = ", ".join(compared_values(plan, as_interactivity))
    tokens = plan.words.rsplit(", ", 1)[-1]
    return f"{plan.tier}, {router_words(plan)}, {tokens}: {values}, hits {share_words(plan.hit_rate)}"


def compared_values(plan: ComparedPlan, as_interactivity: list[str]) -> list[str]:
    """Return the value of each objective of a compared plan in words."""
    return [_compared_value(plan, name, name in as_interactivity) for name in plan.values_s]


def share_words(value: float | None) -> str:
    """Return a share in per cent, or that it is unknown."""
    return "unknown" if value is None else percent(value)


def _compared_value(plan: ComparedPlan, name: str, as_rate: bool) -> str:
    value_s = plan.values_s[name]
    if value_s is None and plan.rejected_share:
        return f"{objective_name(name, as_rate)} missed ({percent(plan.rejected_share)} rejected)"
    return f"{objective_name(name, as_rate)} = {objective_text(value_s, as_rate)}"
