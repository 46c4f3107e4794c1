"""What the readers of all engines share: flags that state one key each, and notes on all others."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from catalogs.deployments.layout import ALLGATHER_REDUCESCATTER, All2All
from catalogs.deployments.schema import AttentionBackend, GemmBackend, MoeBackend
from catalogs.engines.flags import FlagRow, FlagTable
from catalogs.errors import InputError, nearest_name
from catalogs.io.input_files import is_file, read_text, user_path
from catalogs.io.yaml_files import parse_yaml
from catalogs.launch.reading.lines import LaunchLine
from catalogs.launch.reading.names import DTYPES, find_model
from catalogs.launch.reading.notes import Kind, Note
from catalogs.launch.reading.words import GivenFlag, parse_words
from catalogs.models.catalog import load_model
from catalogs.models.spec import ModelSpec

#: Values of --dtype, which are the same in vLLM (vllm/config/model.py, `ModelDType`) and in SGLang (server_args.py).
_DTYPE_CHOICES: Final = ("auto", "half", "float16", "bfloat16", "float", "float32")

#: The notes on kernels, and on exchanges of tokens, that deployment.yaml cannot name.
OTHER_KERNELS: Final = "steps are priced with the kernels of the operator tables"
OTHER_EXCHANGE: Final = "the exchange of tokens is simulated as an all-gather and a reduce-scatter"

#: Keys of which engines have more values than deployment.yaml, with its values and the note on others.
_CHOICES: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "gemm_backend": (get_args(GemmBackend), OTHER_KERNELS),
    "moe_backend": (get_args(MoeBackend), OTHER_KERNELS),
    "attention_backend": (get_args(AttentionBackend), OTHER_KERNELS),
    "all2all_backend": (get_args(All2All), OTHER_EXCHANGE),
}


@dataclass(slots=True)
class Reading:
    """The reading of one line in progress.

    Attributes:
        line: The command.
        table: The flags of its engine.
        role: Whether the server computes prompts, decodes, or does both.
        version: The version of the engine; None if nothing names it.
        keys: The keys of deployment.yaml that the command states.
        notes: The notes on flags.
        special: The last occurrence of each flag that states no single key, by its name.
        objects: The merged JSON values of flags, by their name.
        others: The words that belong to no flag.
        method: The method of quantisation that a flag names.
        kept: The words of flags without an effect on a step.
    """

    line: LaunchLine
    table: FlagTable
    role: str = "both"
    version: str | None = None
    keys: dict[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    special: dict[str, GivenFlag] = field(default_factory=dict)
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    method: str = ""
    kept: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, line: LaunchLine, table: FlagTable, words: Iterable[str]) -> Reading:
        """Return the reading of a command with the keys of all flags that state one.

        Raises:
            InputError: A flag is ambiguous, or its value is invalid.
        """
        reading = cls(line, table)
        given, reading.others = parse_words(list(words), table)
        written: dict[str, str] = {}
        for flag in given:
            reading._take(flag, written)
        reading._variables()
        return reading

    def note(self, kind: Kind, flag: str, text: str) -> None:
        """Add a note on a flag to those of the reading; `kind` states what the flag does to the deployment."""
        self.notes.append(Note(kind, flag, text))

    def state(self, key: str, value: Any, flag: str) -> None:
        """Set a key, `block.key` in a block, and note which flag states it; None leaves the engine's default."""
        if value is not None:
            place, _, last = key.rpartition(".")
            block = self.keys.setdefault(place, {}) if place else self.keys
            block[last] = value
        else:
            self.keys.pop(key, None)
        self.note("read", flag, f"{key}: {'the default' if value is None else shown(value)}")

    def model(self, written: str, flag: str, other_names: tuple[str, ...] = ()) -> ModelSpec:
        """Set the model, and the dtype of its weights where the name states it.

        Raises:
            InputError: The catalog does not know the model.
        """
        found = find_model(self.line.model or written, other_names)
        self.notes += found.notes
        self.state("model", found.name, flag)
        if found.weight_dtype is not None:
            self.keys["weight_dtype"] = found.weight_dtype
        return load_model(found.name)

    def dtype(self, flag: GivenFlag | None, model: ModelSpec) -> None:
        """Read the dtype of activations, which is that of the weights of a model in 16 or 32 bit."""
        if flag is None:
            return
        chosen = DTYPES.get(flag.value.lower())
        if flag.value != "auto" and chosen is None:
            nearest = nearest_name(flag.value, _DTYPE_CHOICES) or "auto"
            self.note("unknown", flag.text, f"{self.table.name} has no such dtype; nearest: {nearest}; it is left out")
        elif flag.value == "auto" or model.weight_dtype not in ("bf16", "fp16", "fp32"):
            self.note("no effect", flag.text, f"the weights of {model.name} are in {model.weight_dtype}")
        elif chosen != model.weight_dtype and "weight_dtype" not in self.keys:
            self.state("weight_dtype", chosen, flag.text)
        else:
            self.note("no effect", flag.text, "the dtype of the model")

    def quantization(self, model: ModelSpec) -> None:
        """Read the method of quantisation, which applies to 16-bit weights or names the storage of a checkpoint."""
        method = self.method
        if not method:
            return
        stored = self.keys.get("weight_dtype") or model.weight_dtype
        if method == "fp8" and stored in ("bf16", "fp16"):
            self.keys["weight_dtype"] = "fp8"
            self.note("read", f"quantization {method}", "weight_dtype: fp8, quantised while the weights are loaded")
            if self.keys.get("kv_dtype") is None and model.weight_format("fp8").kv_dtype is not None:
                self.keys["kv_dtype"] = stored
                self.note("read", f"quantization {method}", f"kv_dtype: {stored}, which only fp8 checkpoints change")
        elif method == "bitsandbytes" and stored in ("bf16", "fp16"):
            self.keys["weight_dtype"] = "int4"
            self.note("assumed", f"quantization {method}", "weight_dtype: int4, whose kernels were not measured")
        elif stored in ("bf16", "fp16"):
            text = "the catalog has the model in 16 bits: name the quantised checkpoint, or --set weight_dtype=int4"
            self.note("not simulated", f"quantization {method}", text)
        else:
            self.note("no effect", f"quantization {method}", f"the weights are in {stored}, as the checkpoint states")

    def leave_out_unknown_choices(self) -> None:
        """Leave out kernels and exchanges of tokens that deployment.yaml cannot name, with a note."""
        for key, (known, why) in _CHOICES.items():
            if self.keys.get(key) not in (None, *known):
                self.note("not simulated", f"{self.table.by_key[key]} {self.keys.pop(key)}", why)

    def _take(self, given: GivenFlag, written: dict[str, str]) -> None:
        flag = given.flag
        if flag is None:
            nearest = self.table.nearest(given.written)
            text = f"{self.table.name} has no such flag" + (f"; nearest: {nearest}" if nearest else "")
            self.note("unknown", given.text, f"{text}; it is left out")
            return
        if flag.name in written and flag.takes != "json":
            self.note("assumed", given.text, f"given twice: the last value counts, not that of {written[flag.name]}")
        written[flag.name] = given.text
        if flag.row is None:
            self.note(flag.kind, given.text, flag.why)
            if flag.kind == "no effect":
                self.kept += [given.written, *given.values]
            return
        if flag.row.trap:
            self.note("trap", given.text, flag.row.trap)
        if flag.takes == "json" and (flag.row.key or given.path or given.value[:1] in "{["):
            self.objects[flag.name] = merged(self.objects.get(flag.name, {}), given.mapping())
            self.special[flag.name] = given
        elif flag.row.key is None:
            self.special[flag.name] = given
        elif flag.row.key == "weight_dtype":
            self.method = given.value.lower()
        else:
            self.state(flag.row.key, value_of(given, flag.row), given.text)

    def balancer(self, switch: str) -> None:
        """Drop the copies of experts where the command has no load balancer, or sends no token to its experts.

        Args:
            switch: The flag that starts the balancer.
        """
        copies = self.keys.pop("redundant_experts", None)
        given = self.special.get(switch)
        backend = self.keys.get("all2all_backend", ALLGATHER_REDUCESCATTER)
        if given is None and copies:
            text = f"copies of experts without a load balancer ({switch}) are left out"
            self.note("not simulated", f"{self.table.by_key['redundant_experts']}", text)
        elif given is not None and not copies:
            text = "a load balancer without copies of experts is not simulated: experts have the loads of the router"
            self.note("not simulated", given.text, text)
        elif copies and backend == ALLGATHER_REDUCESCATTER:
            self.note("not simulated", f"{switch} with {copies} copies", OTHER_EXCHANGE)
        elif copies:
            self.keys["redundant_experts"] = copies

    def drop_overlap_without_deepep(self, *, refused: bool) -> None:
        """Leave out the overlap of two halves of a step, with a note, where the exchange is not DeepEP's.

        Args:
            refused: The engine does not start in this case; otherwise it runs steps in one batch.
        """
        if self.keys.get("two_batch_overlap") and not str(self.keys.get("all2all_backend")).startswith("deepep"):
            del self.keys["two_batch_overlap"]
            flag = self.table.by_key["two_batch_overlap"]
            self.notes[:] = [note for note in self.notes if note.flag != flag]
            text = "halves of a step overlap only with DeepEP's exchange of tokens, which the command does not choose"
            if refused:
                self.note("trap", flag, f"{text}: the engine refuses to start, and is simulated without the flag")
            else:
                self.note("no effect", flag, text)

    def stage_variable(self, name: str) -> None:
        """Read the environment variable that states the layers of each pipeline stage, such as "20,21,21,18".

        Raises:
            InputError: It is no list of whole numbers.
        """
        written = self.line.environment.get(name)
        if not written:
            return
        try:
            layers = [int(layer) for layer in written.split(",")]
        except ValueError:
            raise InputError(f"{name} is a list of whole numbers with commas", written, "20,20") from None
        self.state_by_variable("pipeline_layers", layers, name)

    def state_by_variable(self, key: str, value: Any, name: str) -> None:
        """Set a key that an environment variable states, in place of the note that the table has on the variable."""
        self.state(key, value, self._variable_without_note(name))

    def note_variable(self, kind: Kind, name: str, text: str) -> None:
        """Add a note on an environment variable, in place of the note that the table has on it."""
        self.note(kind, self._variable_without_note(name), text)

    def _variable_without_note(self, name: str) -> str:
        """Remove the note on an environment variable, and return the variable as it is written in the command."""
        self.notes[:] = [note for note in self.notes if not note.flag.startswith(f"{name}=")]
        return f"{name}={self.line.environment[name]}"

    def _variables(self) -> None:
        """Note the environment variables that the table does not read; HOME and the like are passed over."""
        for name, value in self.line.environment.items():
            group = next((g for g in self.table.variables if any(fnmatch.fnmatch(name, p) for p in g.names)), None)
            if group is not None:
                self.note(group.kind, f"{name}={value}", group.why)


def value_of(given: GivenFlag, row: FlagRow) -> Any:
    """Return the value of a key that a flag states; None for the engine's default.

    Raises:
        InputError: The value has another type, or is none of the engine's names.
    """
    if given.flag is not None and given.flag.bare:
        off = given.negated or given.value.lower() in ("false", "0")
        return (not row.sets) if off else row.sets
    folded = {name.lower(): value for name, value in row.also.items()}
    folded |= {name.lower(): value for value, name in row.names.items() if name.lower() not in folded}
    if given.value.lower() in folded:
        return folded[given.value.lower()]
    if row.takes == "int":
        return given.integer()
    if row.takes == "float":
        return given.number()
    if row.takes == "list":
        return [int(value) for value in given.values] if all(v.isdigit() for v in given.values) else len(given.values)
    return given.value


def named_file(path: str, files: Mapping[str, str]) -> dict[str, Any]:
    """Return the YAML file that a flag names: one that the script or manifest writes, or one of this machine.

    Raises:
        InputError: The file is neither part of the text nor on this machine.
    """
    name = path.rpartition("/")[2]
    if name in files:
        return parse_yaml(files[name], name)
    at = user_path(path)
    if not path or not is_file(at):
        rule = "a file that the command names must be here, or be written by the same script or manifest"
        raise InputError(rule, path, hint="copy it to the folder of the command")
    return parse_yaml(read_text(at, "cannot read the file of --config"), path)


def merged(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Return two mappings as one; inner mappings are merged too, and the second takes precedence."""
    found = dict(a)
    for key, value in b.items():
        inner = found.get(key)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        found[key] = merged(inner, value) if both else value  # type: ignore[arg-type]
    return found


def shown(value: Any) -> str:
    """Return a value as deployment.yaml shows it."""
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def choice(value: str, choices: Mapping[str, Any], rule: str) -> Any:
    """Return the meaning of an engine's name.

    Raises:
        InputError: The engine has no such name.
    """
    found = choices.get(value.lower())
    if found is None:
        raise InputError(rule, value, nearest_name(value, choices) or next(iter(choices)))
    return found
