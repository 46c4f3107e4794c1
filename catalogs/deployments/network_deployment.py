"""The deployment of a network that is not a language model: the same file, decided by its key `model`.

A network serves jobs: each is one pass, or one denoising, at sizes that the workload states
(`catalogs/workloads/jobs.py`). A job runs on `ulysses * ring * guidance` accelerators, which are one replica. Replicas
are independent.

The names of the batching options are those of the product in seconds; their counterparts in the engines:

| key | Triton (`config.pbtxt`) | SGLang-Diffusion |
|---|---|---|
| `max_batch` | `max_batch_size` | `--batching-max-size` |
| `preferred_batches` | `dynamic_batching.preferred_batch_size` | none |
| `queue_delay_s` | `dynamic_batching.max_queue_delay_microseconds` | `--batching-delay-ms` |
| `instances` | `instance_group.count` on each accelerator | none |
| `priorities`, `default_priority` | `priority_levels`, `default_priority_level` | none |
| `timeout_s`, `timeout_action`, `max_waiting` | `default_queue_policy` | none |

vLLM's pooling runner serves networks that give an embedding, a score or a class for a text. Its `max_batch` is
`--max-num-seqs`; it never waits for more jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from catalogs.deployments.schema import Deployment, check_staleness, deployment_of_keys
from catalogs.errors import InputError, nearest_name
from catalogs.io.input_files import exists, user_path
from catalogs.io.yaml_files import StrictYamlBlock, read_typed_yaml, validate_as
from catalogs.models.names import load_names, stated_kind
from catalogs.networks.files import find_network, list_networks
from catalogs.networks.header import load_header
from catalogs.networks.names import load_names as load_network_names

#: What serves the jobs, and with it the rule that forms batches (simulator/jobs/batchers).
NetworkEngine = Literal["torch", "triton", "sglang-diffusion", "vllm"]

#: What happens to a job that has waited for `timeout_s` (Triton's `timeout_action`).
TimeoutAction = Literal["reject", "delay"]

#: Keys that only some engines have, by engine.
_OWN_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "torch": frozenset(),
    "vllm": frozenset(),
    "sglang-diffusion": frozenset({"queue_delay_s"}),
    "triton": frozenset(
        {
            "preferred_batches",
            "queue_delay_s",
            "instances",
            "priorities",
            "default_priority",
            "timeout_s",
            "timeout_action",
            "max_waiting",
        }
    ),
}


class SessionState(StrictYamlBlock):
    """The `session_state` block: what each session keeps on the accelerators between its jobs, as SAM 2 keeps frames.

    A session whose state is elsewhere waits until it is copied: from host memory, or from another replica through it.
    """

    mib: PositiveFloat  # of one session, on each accelerator of its replica
    resident: PositiveInt | None = None  # sessions in the memory of one replica; null: as many as fit


class NetworkDeployment(StrictYamlBlock):
    """The contents of deployment.yaml where `model` is a network; null means the engine's default."""

    model: str  # a network of the catalog, or the path of a network file
    engine: NetworkEngine = "torch"
    hardware: str
    replicas: PositiveInt = 1
    mode: str = "compiled"  # eager | compiled | tensorrt
    precision: str = "bf16"
    autocast: bool = False
    attention_backend: str | None = None  # null: the best that was measured on the accelerator
    ulysses: PositiveInt = 1  # accelerators that share the sequence of one job by heads
    ring: PositiveInt = 1  # accelerators that pass keys and values of one job around
    guidance: PositiveInt = 1  # accelerators that share the two passes of classifier-free guidance
    shard_weights: bool = False  # each accelerator holds its share of the weights (FSDP)
    offload: bool = False  # only the weights of the running stage are on the accelerator
    power_limit_w: PositiveFloat | None = None
    further_models: list[str] = Field(default_factory=list)  # networks that share the accelerators of each replica
    job: dict[str, PositiveInt] = Field(default_factory=dict)  # sizes of a job where the workload states none
    max_batch: PositiveInt = 1  # most items that run together
    preferred_batches: list[PositiveInt] = Field(default_factory=list)  # sizes that start at once; empty: max_batch
    queue_delay_s: NonNegativeFloat = 0.0  # longest wait of the oldest job for others to join its batch
    instances: PositiveInt = 1  # copies of the network on the accelerators of a replica
    priorities: Annotated[int, Field(ge=0)] = 0  # number of priority levels; level 1 is served first
    default_priority: PositiveInt | None = None  # level of jobs without priority; null: the last
    timeout_s: PositiveFloat | None = None  # longest wait of a job for its start
    timeout_action: TimeoutAction = "reject"
    max_waiting: PositiveInt | None = None  # waiting jobs of a replica (of each priority); null: no limit
    session_state: SessionState | None = None  # null: sessions keep nothing
    router: str | dict[str, object] = "round_robin"  # catalogs/deployments/routing.py
    router_staleness_s: Annotated[float, AfterValidator(check_staleness)] = 0.0

    @property
    def models(self) -> tuple[str, ...]:
        """Return all networks of the deployment, `model` first."""
        return (self.model, *self.further_models)

    @property
    def accelerators_per_replica(self) -> int:
        """Return the number of accelerators of one job, and so of one replica."""
        return self.ulysses * self.ring * self.guidance

    def check(self) -> NetworkDeployment:
        """Return the deployment, whose keys fit its engine and each other.

        Raises:
            InputError: A key belongs to another engine, or a value is out of range.
        """
        for key in sorted(_OWN_KEYS["triton"] - _OWN_KEYS[self.engine]):
            if getattr(self, key) != NetworkDeployment.model_fields[key].get_default(call_default_factory=True):
                engines = ", ".join(name for name, keys in _OWN_KEYS.items() if key in keys)
                raise InputError(f"{self.engine} has no {key}", getattr(self, key), f"engine: {engines}")
        beyond = [size for size in self.preferred_batches if size > self.max_batch]
        if beyond:
            raise InputError("preferred_batches must be at most max_batch", beyond[0], str(self.max_batch))
        if self.default_priority is not None and self.default_priority > self.priorities:
            rule = f"default_priority is one of the {self.priorities} priority levels"
            raise InputError(rule, self.default_priority, str(self.priorities) if self.priorities else "priorities: 2")
        if self.further_models and (self.engine == "triton" or self.instances > 1):
            rule = "several networks share accelerators in one queue with one instance; Triton has a queue for each"
            raise InputError(rule, f"engine: {self.engine}, instances: {self.instances}", "engine: torch")
        if len(set(self.models)) < len(self.models):
            raise InputError("further_models names each other network once", ", ".join(self.further_models))
        resident = self.session_state.resident if self.session_state else None
        if resident is not None and resident < self.max_batch * self.instances:
            least = str(self.max_batch * self.instances)
            raise InputError("the sessions of all running batches must be resident", resident, least)
        if self.timeout_action == "delay" and self.timeout_s is None:
            raise InputError("timeout_action: delay needs a timeout", "timeout_s: null", "timeout_s: 1.0")
        return self


def is_network(model: str) -> bool:
    """Return whether a model is a network: a name of the catalog of networks, or a network file.

    A name that is also a language model means the language model.
    """
    text = model.strip()
    if text.lower().endswith((".yaml", ".yml")):
        return True
    return load_names().exact(text) is None and find_network(text) is not None


def as_network_deployment(data: Mapping[str, Any], where: str) -> NetworkDeployment:
    """Return the deployment of a network in a mapping.

    Raises:
        InputError: A key is unknown or belongs to another engine, or a value is out of range.
    """
    known = NetworkDeployment.model_fields
    for key in data:
        if key not in known and key in Deployment.model_fields:
            raise InputError(f"{where}: {data.get('model')} is a network, and this key is for language models", key)
    engine, engines = data.get("engine", "torch"), get_args(NetworkEngine)
    if engine not in engines:
        nearest = nearest_name(str(engine), engines) or ", ".join(engines)
        raise InputError(f"{where}: no such engine of networks", engine, nearest)
    return validate_as(NetworkDeployment, dict(data), where).check()


def load_any_deployment(path: Path) -> Deployment | NetworkDeployment:
    """Read a deployment file, of a language model or of a network; `model` decides which.

    Raises:
        InputError: The file is unreadable, a key is unknown, or a value is out of range.
    """
    data, where = read_typed_yaml(Path(path)), Path(path).name
    model = data.get("model")
    if isinstance(model, str):
        if is_network(model):
            return as_network_deployment(data, where)
        refuse_misspelled_network(model)
        for key in data:
            if key not in Deployment.model_fields and key in NetworkDeployment.model_fields:
                raise InputError(f"{where}: {model} is not a network, and this key is for networks", key)
    return deployment_of_keys(data, where)  # a pipe can be read only once


def refuse_misspelled_network(model: str) -> None:
    """Refuse a name that is more like that of a network than like that of any language model, or states such a kind.

    Raises:
        InputError: It is; the message names the network, or the networks of the kind that a word of the name states.
    """
    names = load_names()
    path = not model.strip() or exists(user_path(model)) or model.startswith((".", "/", "~")) or model.endswith(".json")
    if path or names.exact(model) is not None:
        return
    kind = stated_kind(model)
    if kind is not None:
        same = [name for name in list_networks() if load_header(name).family == kind]
        nearest = load_network_names().nearest(model, same)
        hint = f"the catalog has no network for {kind}"
        if same:
            hint = f"the networks of the catalog for {kind} are {', '.join(same)}"
        raise InputError("unknown model", model, nearest, hint)
    if "/" in model:  # an id of Hugging Face is similar to no name without a publisher
        return
    nearest, other = load_network_names().nearest(model, list_networks()), names.nearest(model)
    if nearest is not None and (other is None or nearest_name(model, (other, nearest)) == nearest):
        raise InputError("unknown model", model, nearest, "`catalog list models` and `catalog list networks` list all")
