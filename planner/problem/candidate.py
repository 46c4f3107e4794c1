"""One point of the search space: what the planner may still choose about a deployment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, fields, replace
from typing import Any, Final

from catalogs.deployments.layout import Layout
from catalogs.deployments.schema import Deployment
from catalogs.io.yaml_files import check


def replicas_words(d: dict[str, Any]) -> str:
    """What serves: "2 replicas x TP4", or "1 prefill x TP2 + 3 decode x TP2"."""
    layout = Layout(**{f.name: d[f.name] for f in fields(Layout)})
    apart, split = d.get("disaggregation"), WHOLE
    if apart:
        first = {f.name: apart["prefill"][f.name] for f in fields(Layout)}
        split = Split(apart["prefill_replicas"], Layout(**first))
    return count_words(apart["decode_replicas"] if apart else d["replicas"], layout, split)


def deployment_words(d: dict[str, Any]) -> str:
    """One line for a deployment block."""
    return (
        f"{replicas_words(d)} on {d['hardware']}, {d['weight_dtype']} weights, {d['kv_dtype']} KV, "
        f"{d['max_num_seqs']} sequences, {d['max_num_batched_tokens']} batched tokens"
        f"{drafts_words(d.get('speculative'))}"
    )


_ONE: Final = Layout()


@dataclass(frozen=True, slots=True, order=True)
class Split:
    """Replicas that compute prompts only, where the candidate's own then only decode. No replicas: there are none."""

    replicas: int = 0
    layout: Layout = _ONE

    def __bool__(self) -> bool:
        return self.replicas > 0


WHOLE: Final = Split()

NO_KEYS: Final = "{}"


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A complete deployment of one model on one engine; `hardware` may be a part of what the user named.

    split: where prompts are computed apart. rest: further keys of deployment.yaml, as JSON (a candidate is a
    key of many tables).
    """

    hardware: str
    replicas: int
    layout: Layout
    weight_dtype: str
    kv_dtype: str
    max_num_seqs: int
    max_num_batched_tokens: int
    split: Split = WHOLE
    rest: str = NO_KEYS

    @property
    def accelerators(self) -> int:
        return self.replicas * self.layout.accelerators + self.split.replicas * self.split.layout.accelerators

    @property
    def lanes(self) -> int:
        """Batches in flight at once: one for each replica, or for each stage of its pipeline."""
        return self.replicas * self.layout.pipeline_parallel

    @property
    def placement(self) -> tuple[object, ...]:
        """Everything but the batching limits."""
        return (self.hardware, self.replicas, *self.ranks, *(self._apart if self.split else ()))

    @property
    def ranks(self) -> tuple[object, ...]:
        """One replica without its batching limits: what decides memory for weights and the time of a given step."""
        more = () if self.rest == NO_KEYS else (self.rest,)
        return (*astuple(self.layout), self.weight_dtype, self.kv_dtype, *more)

    @property
    def family(self) -> tuple[object, ...]:
        """What makes two plans different in kind (parallelism and weights), for choosing alternatives."""
        apart = self._apart if self.split else ()
        return (self.hardware, *astuple(self.layout), self.weight_dtype, *apart, self.drafts)

    @property
    def drafts(self) -> bool:
        """Whether it decodes speculatively."""
        return self.rest != NO_KEYS and "speculative" in json.loads(self.rest)

    @property
    def _apart(self) -> tuple[object, ...]:
        return (self.split.replicas, *astuple(self.split.layout))

    @property
    def halves(self) -> tuple[Candidate, Candidate]:
        """(prefill, decode) replicas of a split candidate, each as a candidate of its own."""
        decode = replace(self, split=WHOLE)
        return replace(decode, replicas=self.split.replicas, layout=self.split.layout), decode

    @property
    def words(self) -> str:
        """ "2 replicas x TP4, fp8 weights, bf16 KV, 256 sequences, 8192 batched tokens"."""
        return (
            f"{count_words(self.replicas, self.layout, self.split)}, {self.weight_dtype} weights, {self.kv_dtype} KV, "
            f"{self.max_num_seqs} sequences, {self.max_num_batched_tokens} batched tokens"
            f"{', speculating' if self.drafts else ''}"
        )

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Candidate:
        """The candidate that `dataclasses.asdict` was taken of."""
        split = stored.get("split")
        found = WHOLE if split is None else Split(split["replicas"], Layout(**split["layout"]))
        return cls(**{**stored, "layout": Layout(**stored["layout"]), "split": found})

    def deployment(self, model: str, engine: str) -> Deployment:
        """The deployment.yaml of this candidate, every choice written out."""
        written: dict[str, Any] = {
            "model": model,
            "engine": engine,
            "hardware": self.hardware,
            "replicas": self.replicas,
            **asdict(self.layout),
            "weight_dtype": self.weight_dtype,
            "kv_dtype": self.kv_dtype,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
        }
        if self.split:
            apart = {"prefill_replicas": self.split.replicas, "decode_replicas": self.replicas}
            written |= {"replicas": 1, "disaggregation": {**apart, "prefill": asdict(self.split.layout)}}
        if self.rest != NO_KEYS:
            written |= json.loads(self.rest)
        return check(Deployment, written, "the deployment")


def count_words(replicas: int, layout: Layout, split: Split = WHOLE) -> str:
    """ "2 replicas x TP4", or "1 prefill x TP2 + 3 decode x TP2"."""
    if split:
        return f"{split.replicas} prefill x {split.layout.words} + {replicas} decode x {layout.words}"
    return f"{'1 replica' if replicas == 1 else f'{replicas} replicas'} x {layout.words}"


def drafts_words(speculative: dict[str, Any] | None) -> str:
    """ ", drafts of 3 by ngram"; empty where there are none."""
    if not speculative:
        return ""
    return f", drafts of {speculative['num_speculative_tokens']} by {speculative['method']}"
