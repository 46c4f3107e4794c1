"""One point of the search space: the choices of the planner about a deployment, and their description in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from functools import cache
from typing import Any, Final, NamedTuple

from catalogs.deployments.layout import Layout, Role
from catalogs.deployments.schema import Deployment
from catalogs.hardware.specs import Hardware
from catalogs.io.yaml_files import validate_as

_ONE: Final = Layout()

#: The key of deployment.yaml for the API server processes of each replica.
API_SERVERS: Final = "api_server_count"

#: The keys of deployment.yaml for a pool of encoders, and for how items are served.
ENCODER_POOL: Final = "encoder_pool"

MULTIMODAL: Final = "multimodal"


@dataclass(frozen=True, slots=True, order=True)
class DeploymentOverrides:
    """Further keys of deployment.yaml that a candidate has. Two instances with equal values are equal in any order.

    Attributes:
        values: Values by key, of JSON types; every mapping is sorted by key.
        text: `values` as JSON.
    """

    values: Mapping[str, Any] = field(default_factory=dict, compare=False)
    text: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        text = json.dumps(dict(self.values), sort_keys=True)
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "values", json.loads(text))

    def __bool__(self) -> bool:
        return bool(self.values)

    def without(self, key: str) -> DeploymentOverrides:
        """Return the overrides without a key."""
        if key not in self.values:
            return self
        return DeploymentOverrides({name: value for name, value in self.values.items() if name != key})


NO_OVERRIDES: Final = DeploymentOverrides()


@dataclass(frozen=True, slots=True, order=True)
class Split:
    """The prefill replicas of a disaggregated candidate, of which the other replicas only decode.

    With 0 replicas the candidate is not disaggregated. `rest` holds further keys of the `disaggregation` block; its key
    `prefill` holds the keys, besides the layout, in which the prefill replicas differ from the decode replicas.
    """

    replicas: int = 0
    layout: Layout = _ONE
    rest: DeploymentOverrides = NO_OVERRIDES

    def __bool__(self) -> bool:
        return self.replicas > 0

    @property
    def prefill(self) -> Mapping[str, Any]:
        """Return the keys, besides the layout, in which the prefill replicas differ from the decode replicas."""
        found: Mapping[str, Any] = self.rest.values.get("prefill", {})
        return found


WHOLE: Final = Split()


#: Fields of a candidate that are keys of deployment.yaml under the same name, besides hardware, replicas and layout.
_OWN_KEYS: Final = ("weight_dtype", "kv_dtype", "max_num_seqs", "max_num_batched_tokens")


class CandidatePool(NamedTuple):
    """Replicas of one role; `candidate` describes these replicas alone, as a candidate without a split."""

    role: Role
    candidate: Candidate


@cache
def _sizes(layout: Layout) -> tuple[object, ...]:
    """Return the fields of a layout."""
    return astuple(layout)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A complete deployment of one model on one engine.

    Candidates are keys of many tables; they are ordered by the text of their hardware, then by their fields.

    Attributes:
        hardware: The hardware in use, which may be a part of the requested hardware.
        replicas: Number of replicas; of a disaggregated candidate, of decode replicas.
        layout: The parallelism of each of these replicas.
        weight_dtype: Data type of the weights.
        kv_dtype: Data type of the KV cache.
        max_num_seqs: Most running sequences of a replica.
        max_num_batched_tokens: Token budget of a step.
        split: The prefill replicas, if the candidate is disaggregated.
        rest: Further keys of deployment.yaml.
        part: "encode" for the replicas of the encoder pool of a candidate alone (see `pools`).
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
    part: Role = "both"

    def __hash__(self) -> int:
        """Return the hash of the choices that usually differ: a search looks candidates up a million times."""
        own, layout = (self.weight_dtype, self.kv_dtype, self.max_num_seqs, self.max_num_batched_tokens), self.layout
        ranks = (layout.tensor_parallel, layout.pipeline_parallel, layout.data_parallel)
        return hash((self.hardware.text, self.replicas, ranks, own, self.split.replicas, self.rest.text, self.part))

    def __lt__(self, other: Candidate) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[Any, ...]:
        own = (self.replicas, self.layout, self.weight_dtype, self.kv_dtype)
        return (self.hardware.text, *own, self.max_num_seqs, self.max_num_batched_tokens, self.split, self.rest.text)

    @property
    def accelerators(self) -> int:
        """Return the accelerators of all replicas."""
        prompts = self.split.replicas * self.split.layout.accelerators
        return self.replicas * self.layout.accelerators + prompts + self.encoder_accelerators

    @property
    def encoders(self) -> tuple[int, Layout]:
        """Return the number of replicas of the encoder pool, 0 without one, and the layout of each of them."""
        pool = self.rest.values.get(ENCODER_POOL) or {}
        ranks = int((pool.get("encode") or {}).get("tensor_parallel", 1))
        return int(pool.get("replicas", 0)), Layout(tensor_parallel=ranks)

    @property
    def encoder_accelerators(self) -> int:
        """Return the accelerators of the encoder pool."""
        replicas, layout = self.encoders
        return replicas * layout.accelerators

    @property
    def whole_towers(self) -> bool:
        """Return whether every tensor rank holds whole towers and encodes its share of the items."""
        how = self.rest.values.get(MULTIMODAL) or {}
        return how.get("encoder_parallel") == "data"

    def with_encoders(self, replicas: int) -> Candidate:
        """Return the candidate with an encoder pool of `replicas` accelerators, which other replicas make room for."""
        fewer = (self.hardware.n_accelerators - replicas) // self.layout.accelerators
        rest = DeploymentOverrides({**self.rest.values, ENCODER_POOL: {"replicas": replicas}})
        return replace(self, replicas=min(self.replicas, fewer), rest=rest)

    def with_whole_towers(self) -> Candidate:
        """Return the candidate with whole towers on every tensor rank."""
        how = {**(self.rest.values.get(MULTIMODAL) or {}), "encoder_parallel": "data"}
        return replace(self, rest=DeploymentOverrides({**self.rest.values, MULTIMODAL: how}))

    @property
    def microbatches(self) -> int:
        """Return the batches in flight at once: one per pipeline stage of each replica."""
        return self.replicas * self.layout.pipeline_parallel

    @property
    def placement(self) -> tuple[object, ...]:
        """Return every choice except the batching limits, as a study names them."""
        return (self.hardware.text, self.replicas, *self.replica_choices, *self._prefill)

    @property
    def replica_choices(self) -> tuple[object, ...]:
        """Return the choices that determine one replica's memory for weights and the time of a given step."""
        return (*self.step_choices, *((self.api_servers,) if API_SERVERS in self.rest.values else ()))

    @property
    def step_choices(self) -> tuple[object, ...]:
        """Return the choices that determine the time of a given step, which API servers do not change."""
        if not self.rest:  # nearly always: a search asks for these choices ten thousand times
            return (*_sizes(self.layout), self.weight_dtype, self.kv_dtype)
        rest = self.rest.without(API_SERVERS).without(ENCODER_POOL)  # their number changes no step
        pools = (self.part, "behind an encoder pool") if self.encoders[0] else ()
        return (*_sizes(self.layout), self.weight_dtype, self.kv_dtype, *((rest.text,) if rest else ()), *pools)

    @property
    def family(self) -> tuple[object, ...]:
        """Return the choices in which alternatives must differ: parallelism, weights and speculation."""
        own = (self.hardware, *_sizes(self.layout), self.weight_dtype, *self._prefill, self.drafts)
        return (*own, self.encoders) if self.encoders[0] else own

    @property
    def api_servers(self) -> int:
        """Return the API server processes of each replica; by default one for each data-parallel rank."""
        return int(self.rest.values.get(API_SERVERS) or self.layout.data_parallel)

    def with_api_servers(self, count: int) -> Candidate:
        """Return the candidate with another number of API server processes for each replica."""
        return replace(self, rest=DeploymentOverrides({**self.rest.values, API_SERVERS: count}))

    @property
    def drafts(self) -> bool:
        """Return whether the candidate uses speculative decoding."""
        return "speculative" in self.rest.values

    @property
    def _prefill(self) -> tuple[object, ...]:
        more = (self.split.rest.text,) if self.split.rest else ()
        return (self.split.replicas, *_sizes(self.split.layout), *more) if self.split else ()

    @property
    def pools(self) -> tuple[CandidatePool, ...]:
        """Return the pools of replicas in the order in which a request visits them.

        There is one, or prefill and then decode, each behind the encoder pool, if there is one.
        """
        encoders, layout = self.encoders
        if not encoders or self.part == "encode":
            return self._language_pools
        first = replace(self, replicas=encoders, layout=layout, split=WHOLE, part="encode")
        return CandidatePool("encode", first), *self._language_pools

    @property
    def states_length(self) -> bool:
        """Return whether max_model_len is stated; otherwise it is the model's, or as much as the cache holds."""
        return self.rest.values.get("max_model_len") is not None

    @property
    def _language_pools(self) -> tuple[CandidatePool, ...]:
        if not self.split:
            return (CandidatePool("both", self),)
        decode = replace(self, split=WHOLE)
        own = {key: value for key, value in self.split.prefill.items() if key in _OWN_KEYS}
        rest = {**self.rest.values, **{key: v for key, v in self.split.prefill.items() if key not in own}}
        prefill = replace(
            decode, replicas=self.split.replicas, layout=self.split.layout, rest=DeploymentOverrides(rest), **own
        )
        return CandidatePool("prefill", prefill), CandidatePool("decode", decode)

    @property
    def words(self) -> str:
        """Return the candidate in words.

        For example "2 replicas x TP4, fp8 weights, bf16 KV, 256 sequences, 8192 batched tokens".
        """
        return (
            f"{encoder_words(*self.encoders)}{count_words(self.replicas, self.layout, self.split)}, "
            f"{self.weight_dtype} weights, {self.kv_dtype} KV, "
            f"{self.max_num_seqs} sequences, {self.max_num_batched_tokens} batched tokens"
            f"{', speculating' if self.drafts else ''}{', whole towers on every rank' if self.whole_towers else ''}"
            f"{api_server_words(self.api_servers, self.layout)}"
        )

    def as_dict(self) -> dict[str, object]:
        """Return the candidate as JSON types, with hardware as its text and further keys as JSON text."""
        kept: dict[str, object] = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "part"}
        split: dict[str, object] = {"replicas": self.split.replicas, "layout": asdict(self.split.layout)}
        split |= {"rest": self.split.rest.text} if self.split.rest else {}
        layouts = {"layout": asdict(self.layout), "split": split}
        return kept | layouts | {"hardware": self.hardware.text, "rest": self.rest.text}

    def deployment(self, model: str, engine: str) -> Deployment:
        """Return the deployment.yaml of this candidate, with every choice written out."""
        own = ("replicas", *_OWN_KEYS)
        written: dict[str, Any] = {"model": model, "engine": engine, "hardware": self.hardware.text}
        written |= asdict(self.layout) | {name: getattr(self, name) for name in own}
        if self.part == "encode":  # with a replica of the language model, which no one reads
            written |= asdict(Layout()) | {"replicas": 1}
        if self.split:
            counts = {"prefill_replicas": self.split.replicas, "decode_replicas": self.replicas}
            prefill = asdict(self.split.layout) | dict(self.split.prefill)
            written |= {"replicas": 1, "disaggregation": {**self.split.rest.values, **counts, "prefill": prefill}}
        return validate_as(Deployment, written | dict(self.rest.values), "the deployment")


def encoder_words(replicas: int, layout: Layout) -> str:
    """Return the encoder pool in words, for example "2 encoders x TP1 + "; empty without one."""
    return f"{'1 encoder' if replicas == 1 else f'{replicas} encoders'} x {layout.words} + " if replicas else ""


def count_words(replicas: int, layout: Layout, split: Split = WHOLE) -> str:
    """Return replicas in words, for example "2 replicas x TP4" or "1 prefill x TP2 + 3 decode x TP2"."""
    if split:
        return f"{split.replicas} prefill x {split.layout.words} + {replicas} decode x {layout.words}"
    return f"{'1 replica' if replicas == 1 else f'{replicas} replicas'} x {layout.words}"


def replicas_words(d: dict[str, Any]) -> str:
    """Return the replicas of a deployment block in words, as `count_words` does.

    A pool of a disaggregated deployment states only the keys in which it differs from the deployment.
    """
    split, pool = d.get("disaggregation"), d.get(ENCODER_POOL)
    if pool:
        ranks = int((pool.get("encode") or {}).get("tensor_parallel", 1))
        first = encoder_words(pool["replicas"], Layout(tensor_parallel=ranks))
        return first + replicas_words({**d, ENCODER_POOL: None})
    if not split:
        return count_words(d["replicas"], Layout.of(d))
    prefill, decode = (Layout.of(d | split.get(role, {})) for role in ("prefill", "decode"))
    return count_words(split["decode_replicas"], decode, Split(split["prefill_replicas"], prefill))


def kind_of(candidate: Candidate) -> str:
    """Return the name of the accelerator that a candidate uses."""
    return candidate.hardware.accelerator.name


def deployment_words(d: dict[str, Any]) -> str:
    """Return one line that describes the deployment block of an answer."""
    return (
        f"{replicas_words(d)} on {d['hardware']}, {d['weight_dtype']} weights, {d['kv_dtype']} KV, "
        f"{d['max_num_seqs']} sequences, {d['max_num_batched_tokens']} batched tokens"
        f"{drafts_words(d.get('speculative'))}{tower_words(d.get(MULTIMODAL))}"
        f"{api_server_words(d.get(API_SERVERS), Layout.of(d))}"
    )


def api_server_words(count: int | None, layout: Layout) -> str:
    """Return the API server processes in words, for example ", 4 API servers"; empty for the default number."""
    return "" if count is None or count == layout.data_parallel else f", {count} API servers"


def tower_words(multimodal: dict[str, Any] | None) -> str:
    """Return how tensor ranks share the towers, where they do not divide their weights; empty otherwise."""
    return ", whole towers on every rank" if (multimodal or {}).get("encoder_parallel") == "data" else ""


def drafts_words(speculative: dict[str, Any] | None) -> str:
    """Return the drafts of a deployment in words, for example ", drafts of 3 by ngram"; empty without drafts."""
    if not speculative:
        return ""
    return f", drafts of {speculative['num_speculative_tokens']} by {speculative['method']}"
