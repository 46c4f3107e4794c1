"""The screen of a plan for agents: the deployment, its tier and routing, what agents see, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator

from catalogs.ui.terminal import PIPED, Line, labelled_rows
from catalogs.ui.words import counted, digits, percent, seconds
from planner.agents.plan import AgentPlan, AgentsAnswer, ComparedPlan
from planner.evaluation.confidence import LEVEL
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
        interval = level_words(row.ci_level or LEVEL, interval_words(row.ci_low_s, row.ci_high_s))
        verdict = verdict_words(row.met, row.probability_met)
        yield "Objective", f"{row.name} = {seconds(row.value_s)} ({interval}), limit {seconds(row.limit_s)}: {verdict}"
    yield "KV tier", f"{best.tier}, {_router_words(best)}"
    yield "Cache", f"{_share(best.hit_rate)} of prompt tokens found, {_share(best.theoretical_hit_rate)} with no limits"
    reached = f"half of the requests reach {_rate(best.interactivity_p50)}, 90 % {_rate(best.interactivity_p90)}"
    yield "Speed", reached
    work = f"{digits(best.requests_at_once)} requests under way at once, {digits(best.requests_per_s)} requests/s"
    yield "Sessions", f"{answer.agents} at once: {work}, {best.output_tokens_per_s:,.0f} output tokens/s"
    if answer.capacity_agents:
        yield "Capacity", f"about {counted(answer.capacity_agents, 'agent')} (within 10 %, up to 8 times the request)"
    else:
        yield "Capacity", "not even one agent meets the objectives"
    if best.usd_per_hour is not None and best.usd_per_agent_hour is not None:
        yield "Cost", f"${best.usd_per_hour:,.2f} per hour, ${best.usd_per_agent_hour:,.3f} per hour and agent"
    for i, other in enumerate(answer.others[:MOST_OTHERS]):
        yield "" if i else "Compared", _other_words(other)
    if answer.others:
        sure = percent(float(request.get("confidence") or DEFAULT_CONFIDENCE))
        yield "", f"(values that are not exceeded by slower steps with {sure} confidence)"
    for notice in answer.notices:
        yield "Note", notice
    runs = f"{counted(answer.n_runs, 'run')} of {answer.n_requests:,} requests in {answer.seconds:.0f} s"
    yield "Search", f"{runs}; sequences at the default, prefill and decode on the same replicas"


def _router_words(plan: AgentPlan | ComparedPlan) -> str:
    if plan.words.startswith("1 replica"):
        return "one replica"
    return "routed by session" if plan.router == "session_affinity" else "routed in turn"


def _other_words(plan: ComparedPlan) -> str:
    values = ", ".join(f"{name} = {seconds(value)}" for name, value in plan.values_s.items())
    tokens = plan.words.rsplit(", ", 1)[-1]
    return f"{plan.tier}, {_router_words(plan)}, {tokens}: {values}, hits {_share(plan.hit_rate)}"


def _share(value: float | None) -> str:
    return "unknown" if value is None else percent(value)


def _rate(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f} tokens/s"
