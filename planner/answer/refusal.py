"""Explain a refusal: the binding constraint, the closest plan, and verified changes that would meet the request."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from catalogs.errors import InputError
from catalogs.hardware.specs import Hardware
from catalogs.ui.words import counted, percent, rate, seconds, shares_words
from planner.answer.answer_schema import Refusal, Suggestion
from planner.answer.candidate_search import distance_of, tester_of
from planner.answer.confirmed_rates import BEST
from planner.answer.evaluated_plan import EvaluatedPlan
from planner.answer.more_hardware import HardwareSizing, SearchOn, more_of
from planner.answer.plan_evaluator import PlanEvaluator
from planner.answer.plan_schema import Memory, Plan, SloResult
from planner.evaluation.api_server_variants import api_server_variants
from planner.evaluation.capacity import TOLERANCE
from planner.evaluation.closed_forms.bounds import MEMORY, NOT_ADMITTED, NOT_RENTED, REQUEST_LENGTH, Discard
from planner.evaluation.closed_forms.queueing import FIRST_TOKEN_STAGES
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.multi_hardware import open_evaluator
from planner.evaluation.stability import OVERLOAD
from planner.evaluation.verdict import SHORT_RUN_MARGIN
from planner.problem.candidate import Candidate
from planner.problem.latency_metrics import E2E, LATENCY_METRICS
from planner.problem.overrides import Overrides
from planner.problem.request import LEAST_CONFIDENCE, PlanRequest
from planner.problem.slo import Slo, parse_slos, rounded_up, seconds_text
from planner.search.candidate_tester import UNSTABLE, Outcome
from planner.space.candidates import candidates

#: Weight dtypes to try, widest first.
NARROWER: Final = ("fp8", "int4")

#: A relaxed limit is this multiple of the value at the required confidence, rounded up to two digits. All replicas
#: together may need the second.
MARGINS: Final = (1.1, 1.3)

#: Seeds of the closest plan, whose replicas are not simulated together.
CLOSEST: Final = replace(BEST, whole_cluster=False)

#: Most candidates, or rates, that one suggestion tries. A judgement of cost: each takes the runs of a plan.
_MAX_TRIES: Final = 4

#: Significant digits of a rate that is suggested.
_RATE_DIGITS: Final = 3

#: Steps in which a lower confidence is tried. A judgement: a user decides by steps of a few per cent, and each takes
#: the runs of a plan.
_LESS_SURE: Final = 0.03

_BEYOND_TRIALS: Final = "not simulated: the search ended before them (a larger search.trials includes them)"

Elsewhere = Callable[[Hardware], Evaluator]


@dataclass(frozen=True, slots=True)
class Refuser:
    """Explains why no candidate meets a request.

    Attributes:
        request: The request.
        plan_evaluator: Evaluates its candidates.
        elsewhere: Opens the evaluator of other hardware.
        plan_on: Returns the first plan of the search that `plan --hw` makes with other hardware.
    """

    request: PlanRequest
    plan_evaluator: PlanEvaluator
    elsewhere: Elsewhere
    plan_on: SearchOn

    def refuse(
        self,
        left: Sequence[Candidate],
        discards: Sequence[tuple[Candidate, Discard]],
        outcomes: Sequence[Outcome],
        tried: Mapping[Candidate, tuple[float, str]],
    ) -> Refusal:
        """Return the refusal.

        Args:
            left: The candidates that the bounds leave.
            discards: The candidates that they rule out.
            outcomes: The outcomes of the search.
            tried: The candidates that were simulated for the table of hardware, with the largest value / limit and the
                name of its objective.
        """
        evaluator = self.plan_evaluator.evaluator
        closest = (self._least_missed(outcomes), None) if outcomes else _closest(discards, evaluator)
        own = evaluator.names.hardware if closest is None else evaluator.names_of(closest[0]).hardware
        missed = {**tried, **{outcome.candidate: (outcome.ratio, outcome.binding) for outcome in outcomes}}
        reasons = self._reasons(left, discards, missed)
        if closest is not None and closest[1] is not None and closest[1].constraint == REQUEST_LENGTH:
            suggestions = list(self._length(closest[1]))  # no other hardware admits longer requests
        else:
            suggestions = [*self._hardware(own), *self._precision()]
        if closest is None:
            limit = f"{self.request.model} cannot be split across {self.request.hardware}"
            return Refusal(binding_constraint=limit, closest=None, what_would_meet_it=suggestions, reasons=reasons)
        candidate, discard = closest
        stages: list[str] = []
        facts = evaluator.facts(candidate)
        memory = Memory.model_validate(facts.memory)
        if discard is not None and (discard.constraint in (MEMORY, REQUEST_LENGTH) or not memory.fits):
            binding, plan = discard.reason, Plan.unstarted(facts.deployment, memory)
        else:
            entry = self.plan_evaluator.entry(candidate, None, CLOSEST)
            binding, plan = self._binding(entry) if discard is None else discard.reason, entry.plan
            stages = [self._stages(candidate, entry)]
            # A lower load does not help where no replica may be lost, or where no instance can be rented.
            if discard is None or discard.constraint not in (NOT_ADMITTED, NOT_RENTED):
                suggestions = [*self._load(entry), *suggestions]
        budget = self.request.max_usd_per_hour
        if budget is not None and (discard is None or discard.constraint != NOT_RENTED):
            binding += f", on hardware within the budget of ${budget:g} per hour"
        return Refusal(
            binding_constraint=binding,
            closest=plan,
            what_would_meet_it=suggestions,
            stages=stages,
            reasons=reasons,
        )

    def _least_missed(self, outcomes: Sequence[Outcome]) -> Candidate:
        """Return the simulated candidate that misses the objectives by least.

        Where short runs leave several placements within their noise, a full run of the best of each decides.
        """
        evaluator, tester = self.plan_evaluator.evaluator, self.plan_evaluator.tester
        strongest = least_missed(outcomes, evaluator.fluid_requests_per_s)
        least: dict[object, Outcome] = {}
        for outcome in within_noise(outcomes):
            known = least.setdefault(outcome.candidate.placement, outcome)
            if outcome.ratio < known.ratio:
                least[outcome.candidate.placement] = outcome
        nearest = sorted(least.values(), key=lambda o: (o.ratio, o.candidate))[:_MAX_TRIES]
        if len(nearest) == 1 or nearest[0].ratio >= UNSTABLE:
            return strongest
        contenders = dict.fromkeys([strongest, *(o.candidate for o in nearest)])
        ratios = {c: tester.probe(c, tester.floor_per_s(c), tester.sizes.full).ratio for c in contenders}
        return min(contenders, key=ratios.__getitem__)

    def _reasons(
        self,
        left: Sequence[Candidate],
        discards: Sequence[tuple[Candidate, Discard]],
        missed: Mapping[Candidate, tuple[float, str]],
    ) -> dict[str, int]:
        """Return the number of candidates by the reason why they are not the answer; each candidate counts once.

        `missed` holds those that were simulated.
        """
        evaluator, tester = self.plan_evaluator.evaluator, self.plan_evaluator.tester
        found: Counter[str] = Counter()
        mildest: dict[str, Discard] = {}
        for _, discard in discards:
            known = mildest.setdefault(discard.constraint, discard)
            if discard.value / discard.limit < known.value / known.limit:
                mildest[discard.constraint] = discard
        for _, discard in discards:
            found[f"ruled out without simulation; the closest: {mildest[discard.constraint].reason}"] += 1
        for ratio, binding in missed.values():  # only the closest plan states by how much: short runs are too noisy
            why = "the queue grows without limit" if ratio >= UNSTABLE else f"{binding} is missed"
            found[f"simulated: {why}"] += 1
        for candidate in left:
            if candidate not in missed:
                full_per_s = evaluator.fluid_requests_per_s(candidate) * OVERLOAD
                slow = full_per_s <= tester.floor_per_s(candidate)
                found["not simulated: overloaded even with a full batch" if slow else _BEYOND_TRIALS] += 1
        return dict(found.most_common())

    def _binding(self, entry: EvaluatedPlan) -> str:
        """Return the objective that the closest plan misses, and by how much."""
        verdict, sure = entry.verdict, percent(self.request.confidence)
        at = f"at {rate(verdict.requests_per_s)}"
        if verdict.rejection:
            return verdict.rejection
        if not verdict.stable:
            return f"the queue grows without limit {at}: even the closest plan is overloaded"
        load = at if self.request.given else f"{at}, a light load"
        row = max((row for row in entry.plan.slo if not row.met), key=SloResult.excess, default=None)
        if row is None and not entry.survives:
            return f"the objectives are met {load}, but not after a failure that must be tolerated"
        if row is None:
            return f"the objectives are met {load} by each replica alone, but not by all of them behind the router"
        if row.value_s is None or row.value_s > row.limit_s:
            return f"{row.name} is {seconds(row.value_s)}, above the limit of {seconds(row.limit_s)}, {load}"
        most = row.value_at_confidence_s
        high = "may grow without limit" if most is None else f"may be {seconds(most)} at {sure} confidence"
        return f"{row.name} {high}, above the limit of {seconds(row.limit_s)}, {load}"

    def _stages(self, candidate: Candidate, entry: EvaluatedPlan) -> str:
        """Return what takes the time of the missed objective at a light load, where requests rarely wait."""
        evaluator = self.plan_evaluator.evaluator
        metric = LATENCY_METRICS[max(entry.plan.slo, key=SloResult.excess).metric]
        light_per_s = evaluator.light_requests_per_s(candidate)
        if metric.is_only_of("prefill"):
            parts = dict(zip(FIRST_TOKEN_STAGES, evaluator.utilisation(candidate, light_per_s).first_s, strict=True))
        else:
            light = evaluator.detail(candidate, self.plan_evaluator.light_load(candidate))
            parts = {kind.replace("_", " "): share for kind, share in light.time_breakdown.items() if kind != "idle"}
        largest = sorted(((name, part) for name, part in parts.items() if part > 0), key=lambda part: -part[1])
        shares = shares_words(dict(largest), 3) if largest else "no resource"
        return f"at a light load of {rate(light_per_s)} the {metric.words} is spent on: {shares}"

    def _load(self, entry: EvaluatedPlan) -> Iterator[Suggestion]:
        """Yield looser objectives, a lower confidence and a lower load that the closest plan meets."""
        rows = entry.plan.slo
        missed = any(not row.met for row in rows)  # else all replicas together miss what each of them meets
        bounded = all(row.has_no_value or row.value_at_confidence_s is not None for row in rows)
        if missed and bounded and entry.verdict.stable:
            yield from self._looser(entry)
        sure = self._lower_confidence(entry)
        if sure is not None:
            yield Suggestion.simulated("confidence", f"a confidence of {percent(sure)} (--confidence {sure:g})", sure)
        below = self.request.requests_per_s
        if below is not None:
            yield from self._lower_rate(entry, below)
        if self.request.users is not None:
            yield from self._fewer_users(entry, self.request.users)

    def _looser(self, entry: EvaluatedPlan) -> Iterator[Suggestion]:
        """Yield the objectives that the closest plan meets at the rate of the request, with all of its replicas."""
        for margin in MARGINS:
            pairs = zip(self.request.slos, entry.plan.slo, strict=True)
            text = ",".join(_relaxed(slo, row, margin) for slo, row in pairs)
            tester = replace(self.plan_evaluator.tester, slos=parse_slos(text.split(",")))
            if replace(self.plan_evaluator, tester=tester).is_confirmed(entry.candidate, entry.requests_per_s):
                yield Suggestion.simulated("slo", f"objectives of {text}", text)
                break

    def _lower_rate(self, entry: EvaluatedPlan, below: float) -> Iterator[Suggestion]:
        """Yield a rate below that of the request that the closest plan carries, with the digits that are printed."""
        candidate, tolerated = entry.candidate, self.request.spare.factor(entry.candidate)
        any_rate = replace(self.plan_evaluator.tester, requests_per_s=None, required=None)
        at_capacity, start = replace(self.plan_evaluator, tester=any_rate), entry.capacity_requests_per_s
        for _ in range(_MAX_TRIES):
            carried = None if start is None else at_capacity.entry(candidate, start, BEST).capacity_requests_per_s
            if carried is None:
                break
            below = _as_printed(min(carried / tolerated, below / (1 + TOLERANCE)))
            if self._under(requests_per_s=below).meets_request(candidate):
                yield Suggestion.simulated("rate", f"{rate(below)} on the closest plan", below)
                break
            start = below * tolerated / (1 + TOLERANCE)

    def _fewer_users(self, entry: EvaluatedPlan, most: int) -> Iterator[Suggestion]:
        """Yield a number of users below that of the request whose rate the closest plan carries.

        By Little's law, the users of a rate are the rate times the seconds of an answer and of the think time.
        """
        candidate, tester, think_s = entry.candidate, self.plan_evaluator.tester, self.request.think_s
        tolerated, users = self.request.spare.factor(candidate), most
        for _ in range(_MAX_TRIES):
            carried = (entry.capacity_requests_per_s or 0.0) / tolerated
            if not carried:
                break
            answer_s = tester.simulated(candidate, carried, tester.sizes.full).mean_s(E2E.name)
            if not math.isfinite(answer_s):  # some requests are never answered, such as those that are too long
                break
            users = min(math.floor(carried * (answer_s + think_s)), users - 1)
            if users < 1:
                break
            entry = self._under(users=users).entry(candidate, None, BEST)
            if entry.holds:
                text = f"{counted(users, 'user')} on the closest plan (--users {users})"
                yield Suggestion.simulated("users", text, users)
                break

    def _under(self, users: int | None = None, **changes: float) -> PlanEvaluator:
        """Return what evaluates plans under another load or with another confidence."""
        evaluator = self.plan_evaluator.evaluator
        load: dict[str, float] = {k: v for k, v in changes.items() if k == "requests_per_s"}
        if users is not None:
            load["users"] = users
        required = tester_of(self.request.replace(**load), evaluator, ()).required  # of replicas that may be lost
        tester = replace(self.plan_evaluator.tester, required=required, **changes)  # type: ignore[arg-type]
        return replace(self.plan_evaluator, tester=tester)

    def _lower_confidence(self, entry: EvaluatedPlan) -> float | None:
        """Return the confidence with which the closest plan meets the objectives, in whole per cent.

        The result is None if this is below the least confidence that a request may have.
        """
        sure = math.floor(100 * min((row.probability_met for row in entry.plan.slo), default=0.0)) / 100
        while entry.verdict.met and LEAST_CONFIDENCE <= sure < self.request.confidence:
            if self._under(confidence=sure).meets_request(entry.candidate):
                return sure
            sure = round(sure - _LESS_SURE, 2)
        return None

    def _length(self, discard: Discard) -> Iterator[Suggestion]:
        """Yield a max_model_len (a power of two) that admits the longest request, if it meets the request.

        If the model itself has fewer positions, yield the constant length that they admit.
        """
        evaluator = self.plan_evaluator.evaluator
        most = evaluator.names.model.longest_sequence_tokens
        if discard.value > most:
            yield from self._shorter(int(discard.limit))
            return
        tokens = min(2 ** math.ceil(math.log2(discard.value)), most)
        fixed = Overrides.of({**self.request.fixed.values, REQUEST_LENGTH: tokens})
        found = self._try(self.request.replace(fixed=fixed), evaluator)
        if found is not None:
            yield Suggestion.simulated(REQUEST_LENGTH, f"max_model_len {tokens}: {found.words}", tokens)

    def _shorter(self, most_tokens: int) -> Iterator[Suggestion]:
        """Yield the constant length with which requests have `most_tokens` tokens, if it meets the request.

        Requests whose lengths vary, or belong to their conversations, have none.
        """
        lengths = self.request.read_workload().lengths()
        for key, tokens in lengths.within(most_tokens).items():
            shorter = self.request.replace(**{key: tokens})
            found = self._try(shorter, open_evaluator(shorter))
            if found is not None:
                option, what = f"--{key.replace('_', '-')}", "prompts" if key == "input_tokens" else "outputs"
                yield Suggestion.simulated(
                    key, f"{what} of {tokens:,} tokens ({option} {tokens}): {found.words}", tokens
                )

    def _precision(self) -> Iterator[Suggestion]:
        """Yield narrower weights than those searched, on the same hardware."""
        searched = {c.weight_dtype for c in candidates(self.request, self.plan_evaluator.evaluator.names)}
        for dtype in NARROWER:
            if dtype not in searched:
                found = self._try(self.request.replace(precisions=(dtype,)), self.plan_evaluator.evaluator)
                if found is not None:
                    yield Suggestion.simulated(
                        "precision", f"{dtype} weights (check the answer quality): {found.words}", dtype
                    )
                    return

    def _hardware(self, own: Hardware) -> Iterator[Suggestion]:
        """Yield the least hardware of the same kind, and of the first other kind, that meets the request.

        A suggestion above the budget names the budget that it needs.
        """
        sizing = HardwareSizing(self._try_on, self.plan_on)
        for least in (sizing.least(more_of(own), own), sizing.least_of_others(own)):
            if least is None:
                continue
            hardware, found = least
            change, budget = f"{hardware.text}: {found.words}", self.request.max_usd_per_hour
            price = self.plan_evaluator.prices.of_other(hardware).price(found)
            if budget is None or price is None or price.usd_per_hour <= budget:
                yield Suggestion.simulated("hardware", change, hardware.text)
            else:
                usd = math.ceil(100 * price.usd_per_hour - 1e-6) / 100  # rounded down, it would not suffice
                yield Suggestion.simulated(
                    "budget", f"a budget of ${usd:.2f} per hour instead of ${budget:g}: {change}", usd
                )

    def _try_on(self, hardware: Hardware) -> Candidate | None:
        """Return the first promising candidate on other hardware that meets the request; None if there is none."""
        try:
            return self._try(self.request.replace(hardware=hardware.text), self.elsewhere(hardware))
        except InputError:
            return None

    def _try(self, request: PlanRequest, evaluator: Evaluator) -> Candidate | None:
        """Return the first promising candidate with default limits that meets the request in simulation."""
        required = tester_of(request, evaluator, ()).required  # the rate of users follows from their own hardware
        tester = replace(self.plan_evaluator.tester, evaluator=evaluator, required=required)
        default: dict[object, Candidate] = {}
        for c in candidates(request, evaluator.names):
            default.setdefault(c.placement, c)
        left = [c for c in default.values() if evaluator.discard(c) is None and math.isfinite(tester.floor_per_s(c))]
        left = [*left, *api_server_variants(left, evaluator, request.fixed, request.requests_per_s)]
        left.sort(key=lambda c: -evaluator.fluid_requests_per_s(c))
        plan_evaluator = PlanEvaluator(evaluator, tester, self.plan_evaluator.prices)
        for candidate in left[:_MAX_TRIES]:
            rate = tester.floor_per_s(candidate)
            if not tester.probe(candidate, rate, tester.sizes.quick).clearly_missed and plan_evaluator.holds(
                candidate, rate
            ):
                return candidate
        return None


def _closest(
    discards: Sequence[tuple[Candidate, Discard]], evaluator: Evaluator
) -> tuple[Candidate, Discard | None] | None:
    """Return the candidate closest to the bound that rules it out: latency bounds first, then memory."""
    never_started = (MEMORY, REQUEST_LENGTH)
    over = [
        (d.constraint in never_started, round(d.value / d.limit, 2), distance_of(c, evaluator), c, d)
        for c, d in discards
    ]
    if not over:
        return None
    *_, candidate, discard = min(over, key=lambda item: item[:4])
    return candidate, discard


def within_noise(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes that miss the objectives by as little as the least one, within the noise of short runs."""
    least = min(o.ratio for o in outcomes)
    return [o for o in outcomes if o.ratio <= least * SHORT_RUN_MARGIN and (o.ratio >= UNSTABLE) == (least >= UNSTABLE)]


def least_missed(outcomes: Sequence[Outcome], carried_per_s: Callable[[Candidate], float]) -> Candidate:
    """Return the simulated candidate that misses the objectives by least.

    Short runs end most of these simulations, and their noise exceeds small differences: two replicas may miss by less
    than three of the same kind. Of the placements within that noise, the one that carries the highest rate is taken.

    Args:
        outcomes: The outcomes, none of which meets the objectives.
        carried_per_s: Returns the estimated rate that a candidate carries, in requests/s.
    """
    near = within_noise(outcomes)
    strong = {o.candidate: -carried_per_s(o.candidate) for o in near}
    placement = min(near, key=lambda o: (strong[o.candidate], o.ratio, o.candidate)).candidate.placement
    same = [o for o in near if o.candidate.placement == placement]
    return min(same, key=lambda o: (o.ratio, strong[o.candidate], o.candidate)).candidate


def _as_printed(per_s: float) -> float:
    """Return a rate rounded down to the digits that are printed, so that what is printed is what was simulated."""
    digit = 10.0 ** (math.floor(math.log10(per_s)) - _RATE_DIGITS + 1)
    return float(f"{math.floor(per_s / digit * (1 + 1e-12)) * digit:.{_RATE_DIGITS}g}")


def _relaxed(slo: Slo, row: SloResult, margin: float) -> str:
    """Return the text of an objective that its value at the required confidence meets, with a margin."""
    value_s = row.value_at_confidence_s or math.nan
    limit_s = slo.limit_s
    if not row.met and value_s > slo.limit_s:
        limit_s = rounded_up(value_s * margin)
    return f"{slo.name}={seconds_text(limit_s)}"
