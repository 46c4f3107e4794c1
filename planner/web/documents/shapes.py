"""The shapes of the documents: what the API states about its answers.

They stand apart from the functions that compute the documents, so that the server starts without the planner.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from typing_extensions import TypedDict

#: What each field of a StepQuery means, for help texts and schemas.
STEP_HELP: Final = {
    "model": "Model: name in the catalog or Hugging Face id.",
    "hardware": "Hardware of one replica, for example h100x8.",
    "batch": "Sequences in the step.",
    "context": "Tokens per sequence; for prefill, the prompt length.",
    "stage": "Stage of inference: decode or prefill.",
    "engine": "Serving engine.",
    "weight_dtype": "Data type of the weights; default: the model's own.",
    "kv_dtype": "Data type of the KV cache; default: the engine's.",
    "tensor_parallel": "Accelerators of the replica; default: all of the hardware.",
    "images": "Images, videos or pieces of audio at the start of every prompt, for prefill.",
    "resolution": "Their size: pixels 1024x1024, a video of 32 frames 640x360x32, or audio 30s.",
}

# ---- catalogs


#: Whether the operators of an accelerator were measured on it, on a neighbour that stands in for it, or not at all.
Calibrated = Literal["measured", "borrowed", "none"]


class CheckpointItem(TypedDict):
    """A published quantised checkpoint of a model."""

    repository: str
    weight_dtype: str
    source: str
    as_of: str


class ModelItem(TypedDict):
    """A row of the list of models."""

    name: str
    hf_id: str
    other_names: list[str]
    params: float
    active_params: float
    max_position_tokens: int
    layers: int
    architecture: str
    attention: str
    weight_dtype: str
    weight_bytes: float
    checkpoints: list[CheckpointItem]
    source: str


class ModelDocument(ModelItem):
    """All facts of one model."""

    hidden_size: int
    vocab_size: int
    published_params: float | None
    kv_bytes_per_token_bf16: float
    state_bytes_per_sequence: float
    encoder_layers: int
    encoder_tokens: int
    layer_groups: list[dict[str, Any]]
    notices: list[str]


class PriceItem(TypedDict):
    """A dated price of rented instances."""

    usd_per_hour: float
    instances: str
    idle_accelerators: int
    cloud: str
    region: str
    place: str
    date: str
    source: str
    note: str


class HardwareItem(TypedDict):
    """An accelerator and the node that holds it."""

    name: str
    full_name: str
    vendor: str
    kind: str
    architecture: str
    memory_bytes: float
    memory_bytes_per_s: float
    peak_flops: dict[str, float]
    tdp_w: float
    idle_w: float
    node_sizes: list[int]
    link: str
    link_bytes_per_s: float
    network_bytes_per_s: float
    mig_profiles: list[str]
    price: PriceItem | None
    node_price: PriceItem | None
    calibrated: Calibrated
    calibrated_on: str | None
    source: str
    notes: str


class EngineItem(TypedDict):
    """A serving engine, and whether its steps can be simulated."""

    name: str
    version: str
    supported: bool
    source: str


class NetworkItem(TypedDict):
    """A network in brief; `job` is its default job as a question writes it, and `steps` its denoising steps."""

    name: str
    hf_id: str | None
    other_names: list[str]
    family: str
    params: float
    flops: float
    sizes: list[dict[str, Any]]
    job: str
    steps: int | None
    unit: str
    slo: str
    source: str


class WorkloadItem(TypedDict):
    """A workload with the mean lengths of its requests."""

    name: str
    input_tokens_mean: float
    output_tokens_mean: float
    requests_per_s: float | None
    requests: int
    source: str


class WorkloadDocument(WorkloadItem):
    """A workload in full: the lengths of its prompts and answers in words, and notices of its reader.

    `takes_agents` states whether a plan for agents can use it: the turns of its sessions wait for each other.
    """

    lengths: str
    takes_agents: bool
    notices: list[str]


# ---- calibrations


class FamilyItem(TypedDict):
    """How well the cost of one operator family is known on one accelerator.

    `error` is the median relative error on shapes that were held out, or the assumed one if the family is not measured.
    """

    family: str
    measured: bool
    rows: dict[str, int]
    error: float
    held_out: list[dict[str, Any]]


class CalibrationItem(TypedDict):
    """The calibration of one accelerator."""

    name: str
    calibrated: Calibrated
    calibrated_on: str | None
    bundle: str
    own: bool
    engine: str | None
    engine_version: str | None
    driver: str | None
    sources: Any
    families: list[FamilyItem]
    notices: list[str]


class WholeRunItem(TypedDict):
    """The error of simulated whole runs of one engine, found by comparison with measured runs.

    `intervals` holds, by statistic, the relative differences between which the true value lies with probability
    `coverage`; `runs` the number of compared runs.
    """

    engine: str
    coverage: float | None
    intervals: dict[str, list[float]]
    runs: dict[str, int]
    source: str


# ---- memory


class LayerMemory(TypedDict):
    """The memory of one layer of a kind, bytes of one accelerator, and the number of such layers.

    Layers run one after another and share the memory of their activations, so activations are not summed over layers.
    """

    id: str
    kind: str
    layers: int
    weights_bytes: float
    kv_bytes: float
    activation_bytes: float


# ---- steps


class GraphNode(TypedDict):
    """One operator of one kind of layer. Figures are of one execution; `total_s` is `count` times `seconds`."""

    id: str
    label: str
    op: str
    operator_class: str
    layer_kind: str
    parent: str
    count: float
    shape: dict[str, Any]
    flops: float
    bytes: float
    intensity: float
    seconds: float
    roofline_s: float
    total_s: float
    share: float
    bound: str
    origin: str
    origin_shares: dict[str, float]


# `from` is a keyword of Python, hence this form.
Edge = TypedDict("Edge", {"from": str, "to": str})


class GraphGroup(TypedDict):
    """A kind of layer, or the operators outside the layers; memory is of one layer, times are of all of them."""

    id: str
    label: str
    layers: int
    total_s: float
    share: float
    weights_bytes: float
    kv_bytes: float


class Graph(TypedDict):
    """The graph of a step."""

    question: dict[str, Any]
    nodes: list[GraphNode]
    edges: list[Edge]
    groups: list[GraphGroup]
    step_s: float
    device_s: float
    host_s: float
    n_steps: int
    bounds: dict[str, str]
    calibration: str
    notices: list[str]


# ---- first guesses


class GuessDocument(TypedDict):
    """A first guess of a plan; null where there is none. The rate and the price are those of `gpus` accelerators."""

    fits: bool
    memory: dict[str, Any] | None
    binds: str | None
    single_ttft_s: float | None
    single_tpot_s: float | None
    single_job_s: float | None
    gpus: int | None
    usd_per_hour: float | None
    requests_per_s: float | None
    enough: bool
    deployment: str | None
    hardware: str | None
    uncertainty: dict[str, Any] | None
    notes: list[str]


# ---- comparisons


class ComparedFigure(TypedDict):
    """One figure of every answer, in order; `best` are the positions of the best ones, empty where none is better."""

    name: str
    unit: str
    values: list[float | None]
    best: list[int]


class AnswerDifference(TypedDict):
    """A key in which the answers differ, with its value in each of them in words."""

    what: str
    values: list[str]


class AnswerComparison(TypedDict):
    """Several answers side by side."""

    answers: list[dict[str, Any]]
    figures: list[ComparedFigure]
    differs: list[AnswerDifference]
    notes: list[str]


# ---- texts of deployments


class TextFault(TypedDict):
    """One fault of a text; lines and columns count from 1, `key` is the dotted path of the key."""

    line: int
    column: int
    key: str
    rule: str
    value: str | None
    nearest: str | None
    hint: str | None


class CheckedText(TypedDict):
    """The faults of a text; without any, the deployment as written and with every default filled in."""

    faults: list[TextFault]
    deployment: dict[str, Any] | None
    resolved: list[dict[str, Any]] | None
    notices: list[str]
