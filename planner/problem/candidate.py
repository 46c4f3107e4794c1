"""One point of the search space: what the planner may still choose about a deployment, and how it is put in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from typing import Any, Final, NamedTuple

from catalogs.deployments.layout import Layout, Role
from catalogs.deployments.schema import Deployment
from catalogs.hardware.specs import Hardware
from catalogs.io.yaml_files import validate_as

_ONE: Final = Layout()


@dataclass(frozen=True, slots=True, order=True)
class Split:
    """Replicas that compute prompts only, where the candidate's own then only decode. No replicas: there are none."""

    replicas: int = 0
    layout: Layout = _ONE

    def __bool__(self) -> bool:
        return self.replicas > 0


WHOLE: Final = Split()


@dataclass(frozen=True, slots=True)
class DeploymentOverrides:
    """Keys of deployment.yaml that a candidate has beside its own choices. Equal values are equal, however ordered."""

    values: Mapping[str, Any] = field(default_factory=dict, compare=False)  # JSON types, every mapping sorted by key
    text: str = field(init=False, repr=False)  # `values` as JSON

    def __post_init__(self) -> None:
        text = json.dumps(dict(self.values), sort_keys=True)
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "values", json.loads(text))

    def __bool__(self) -> bool:
        return bool(self.values)

    def with_value(self, key: str, value: object) -> DeploymentOverrides:
        """These keys and one more."""
        return DeploymentOverrides({**self.values, key: value})


NO_OVERRIDES: Final = DeploymentOverrides()


class CandidatePool(NamedTuple):
    """Replicas of one role. candidate: these replicas alone, as a candidate without a split."""

    role: Role
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Candidate:
    """A complete deployment of one model on one engine; `hardware` may be a part of what the user named.

    split: the replicas that compute prompts, where they are separate. rest: further keys of deployment.yaml.
    Candidates are keys of many tables; they are ordered by the text of their hardware, then by their fields.
    """

    hardware: Hardware
    replicas: int
    layout: Layout
    weight_dtype: str
    kv_dtype: str
    max_num_seqs: int
    max_num_batched_tokens: int
    split: Split = WHOLE
    rest: DeploymentOverrides = NO_OVERRIDES

    def __lt__(self, other: Candidate) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[Any, ...]:
        limits = (self.max_num_seqs, self.max_num_batched_tokens)
        own = (self.replicas, self.layout, self.weight_dtype, self.kv_dtype)
        return (self.hardware.text, *own, *limits, self.split, self.rest.text)

    @property
    def accelerators(self) -> int:
        """Of all its replicas."""
        return self.replicas * self.layout.accelerators + self.split.replicas * self.split.layout.accelerators

    @property
    def lanes(self) -> int:
        """Batches in flight at once: one for each replica, or for each stage of its pipeline."""
        return self.replicas * self.layout.pipeline_parallel

    @property
    def placement(self) -> tuple[object, ...]:
        """Everything but the batching limits, as a study names it."""
        return (self.hardware.text, self.replicas, *self.ranks, *(self._prefill if self.split else ()))

    @property
    def ranks(self) -> tuple[object, ...]:
        """One replica without its batching limits: what decides memory for weights and the time of a given step."""
        more = (self.rest.text,) if self.rest else ()
        return (*astuple(self.layout), self.weight_dtype, self.kv_dtype, *more)

    @property
    def family(self) -> tuple[object, ...]:
        """What makes two plans different in kind (parallelism and weights), for choosing alternatives."""
        prefill = self._prefill if self.split else ()
        return (self.hardware, *astuple(self.layout), self.weight_dtype, *prefill, self.drafts)

    @property
    def drafts(self) -> bool:
        """Whether it decodes speculatively."""
        return "speculative" in self.rest.values

    @property
    def _prefill(self) -> tuple[object, ...]:
        return (self.split.replicas, *astuple(self.split.layout))

    @property
    def pools(self) -> tuple[CandidatePool, ...]:
        """Its kinds of replica in the order in which a request visits them: one, or prefill and then decode."""
        if not self.split:
            return (CandidatePool("both", self),)
        decode = replace(self, split=WHOLE)
        prefill = replace(decode, replicas=self.split.replicas, layout=self.split.layout)
        return CandidatePool("prefill", prefill), CandidatePool("decode", decode)

    @property
    def words(self) -> str:
        """ "2 replicas x TP4, fp8 weights, bf16 KV, 256 sequences, 8192 batched tokens"."""
        return (
            f"{count_words(self.replicas, self.layout, self.split)}, {self.weight_dtype} weights, {self.kv_dtype} KV, "
            f"{self.max_num_seqs} sequences, {self.max_num_batched_tokens} batched tokens"
            f"{', speculating' if self.drafts else ''}"
        )

    def as_dict(self) -> dict[str, object]:
        """As JSON keeps it: hardware as its text, further keys as JSON text."""
        kept: dict[str, object] = {f.name: getattr(self, f.name) for f in fields(self)}
        layouts: dict[str, object] = {"layout": asdict(self.layout), "split": asdict(self.split)}
        return kept | {"hardware": self.hardware.text, "rest": self.rest.text} | layouts

    def deployment(self, model: str, engine: str) -> Deployment:
        """The deployment.yaml of this candidate, every choice written out."""
        written: dict[str, Any] = {
            "model": model,
            "engine": engine,
            "hardware": self.hardware.text,
            "replicas": self.replicas,
            **asdict(self.layout),
            "weight_dtype": self.weight_dtype,
            "kv_dtype": self.kv_dtype,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
        }
        if self.split:
            counts = {"prefill_replicas": self.split.replicas, "decode_replicas": self.replicas}
            written |= {"replicas": 1, "disaggregation": {**counts, "prefill": asdict(self.split.layout)}}
        return validate_as(Deployment, written | dict(self.rest.values), "the deployment")


def count_words(replicas: int, layout: Layout, split: Split = WHOLE) -> str:
    """ "2 replicas x TP4", or "1 prefill x TP2 + 3 decode x TP2"."""
    if split:
        return f"{split.replicas} prefill x {split.layout.words} + {replicas} decode x {layout.words}"
    return f"{'1 replica' if replicas == 1 else f'{replicas} replicas'} x {layout.words}"


def replicas_words(d: dict[str, Any]) -> str:
    """What serves, of a deployment block: "2 replicas x TP4", or "1 prefill x TP2 + 3 decode x TP2"."""
    layout = Layout(**{f.name: d[f.name] for f in fields(Layout)})
    disaggregated, split = d.get("disaggregation"), WHOLE
    if disaggregated:
        first = {f.name: disaggregated["prefill"][f.name] for f in fields(Layout)}
        split = Split(disaggregated["prefill_replicas"], Layout(**first))
    return count_words(disaggregated["decode_replicas"] if disaggregated else d["replicas"], layout, split)


def deployment_words(d: dict[str, Any]) -> str:
    """One line for a deployment block of an answer."""
    return (
        f"{replicas_words(d)} on {d['hardware']}, {d['weight_dtype']} weights, {d['kv_dtype']} KV, "
        f"{d['max_num_seqs']} sequences, {d['max_num_batched_tokens']} batched tokens"
        f"{drafts_words(d.get('speculative'))}"
    )


def drafts_words(speculative: dict[str, Any] | None) -> str:
    """ ", drafts of 3 by ngram"; empty where there are none."""
    if not speculative:
        return ""
    return f", drafts of {speculative['num_speculative_tokens']} by {speculative['method']}"
