"""The screen of a plan for agents: the deployment, its tier and routing, what agents see, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator

from catalogs.ui.terminal import PIPED, Line, labelled_rows
from catalogs.ui.words import counted, digits, percent, seconds
from planner.agents.answer import AgentPlan, AgentsAnswer, ComparedPlan
from planner.answer.plan_schema import SloResult
from planner.evaluation.confidence import LEVEL
from planner.problem.interactivity import INTERACTIVITY
from planner.problem.latency_metrics import TPOT
from planner.problem.request import DEFAULT_CONFIDENCE
from planner.sections.section import interval_words, level_words, verdict_words

#: Other choices that the screen shows.
MOST_OTHERS = 5


def show_agents(answer: AgentsAnswer) -> None:
    """Print the screen of an answer."""
    print(render(answer))


def render(answer: AgentsAnswer, width: int = PIPED) -> str:
    """Return the screen as plain text, each line at most `width` columns wide."""
    return "\n".join(row for label, text in _lines(answer) for row in labelled_rows(label, text, width))


def _lines(answer: AgentsAnswer) -> Iterator[Line]:
    request, best = answer.request, answer.best
    load = f"{counted(answer.agents, 'agent')} of workload {request['workload']} at work"
    yield "Request", f"{request['model']} on {request['hardware']}, {load}"
    yield "", ""
    yield "Recommended" if answer.feasible else "Closest", best.words
    for row in best.objectives:
        yield "Objective", _objective_words(row, row.name in answer.as_interactivity, best.rejected_share)
    yield "KV tier", f"{best.tier}, {_router_words(best)}"
    yield "Cache", f"{_share(best.hit_rate)} of prompt tokens found, {_share(best.theoretical_hit_rate)} with no limits"
    yield "Speed", _speed_words(best)
    work = f"{digits(best.requests_at_once)} requests under way at once, {digits(best.requests_per_s)} requests/s"
    yield "Sessions", f"{answer.agents} at once: {work}, {best.output_tokens_per_s:,.0f} output tokens/s"
    yield "Capacity", _capacity_words(answer)
    if best.usd_per_hour is not None and best.usd_per_agent_hour is not None:
        yield "Cost", f"${best.usd_per_hour:,.2f} per hour, ${best.usd_per_agent_hour:,.3f} per hour and agent"
    if answer.others:
        sure = percent(float(request.get("confidence") or DEFAULT_CONFIDENCE))
        yield "Compared", f"the deployment above, then others: values that hold with {sure} confidence, one run each"
        for plan in (answer.compared, *answer.others[:MOST_OTHERS]):
            yield "", _compared_words(plan, answer.as_interactivity)
    for notice in answer.notices:
        yield "Note", notice
    runs = f"{counted(answer.n_runs, 'run')} of {answer.n_requests:,} requests in {answer.seconds:.0f} s"
    yield "Search", f"{runs}; sequences at the default, prefill and decode on the same replicas"


def _router_words(plan: AgentPlan | ComparedPlan) -> str:
    if plan.words.startswith("1 replica"):
        return "one replica"
    return "routed by session" if plan.router == "session_affinity" else "routed in turn"


def _objective_words(row: SloResult, as_rate: bool, rejected_share: float) -> str:
    """Return an objective with its value, interval and limit, as a rate where it was written as one."""
    name, limit = _name(row.name, as_rate), _value(row.limit_s, as_rate)
    if row.value_s is None and rejected_share:
        return f"{name} is missed because {percent(rejected_share)} of the requests are rejected, limit {limit}"
    span = interval_words(row.ci_low_s, row.ci_high_s)
    if as_rate:
        low = "0" if row.ci_high_s is None else digits(1 / row.ci_high_s)
        span = f"{low} to {_value(row.ci_low_s, as_rate)}"
    interval = level_words(row.ci_level or LEVEL, span)
    verdict = verdict_words(row.met, row.probability_met)
    return f"{name} = {_value(row.value_s, as_rate)} ({interval}), limit {limit}: {verdict}"


def _name(name: str, as_rate: bool) -> str:
    return name.replace(TPOT.name, INTERACTIVITY, 1) if as_rate else name


def _value(value_s: float | None, as_rate: bool) -> str:
    """Return a value of an objective; the inverse of a time per output token where it was written as a rate."""
    if not as_rate:
        return seconds(value_s)
    return f"{digits(1 / value_s) if value_s else 0} tokens/s"


def _speed_words(plan: AgentPlan) -> str:
    reached = [
        f"{words} of the requests reach {_value(1 / per_s, True)}"
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


def _compared_words(plan: ComparedPlan, as_interactivity: list[str]) -> str:
    values = ", ".join(_compared_value(plan, name, name in as_interactivity) for name in plan.values_s)
    tokens = plan.words.rsplit(", ", 1)[-1]
    return f"{plan.tier}, {_router_words(plan)}, {tokens}: {values}, hits {_share(plan.hit_rate)}"


def _share(value: float | None) -> str:
    return "unknown" if value is None else percent(value)


def _compared_value(plan: ComparedPlan, name: str, as_rate: bool) -> str:
    value_s = plan.values_s[name]
    if value_s is None and plan.rejected_share:
        return f"{_name(name, as_rate)} missed ({percent(plan.rejected_share)} rejected)"
    return f"{_name(name, as_rate)} = {_value(value_s, as_rate)}"
