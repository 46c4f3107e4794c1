"""Network files: YAML with one line for each operator, read strictly and written in the same form."""

from __future__ import annotations

import dataclasses
import keyword
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, NonNegativeInt, PositiveInt, Tag

from catalogs.errors import InputError, nearest_name
from catalogs.io.output_files import write_atomically
from catalogs.io.yaml_files import YamlBlock, read_yaml, user_folder, validate_as
from catalogs.networks.names import FOLDER, NAMES, load_names
from catalogs.networks.network import (
    ITEMSIZE,
    DerivedSize,
    JobSize,
    NeuralNetwork,
    Operator,
    Repeat,
    Stage,
    listed_dims,
    usual_traffic,
)
from catalogs.networks.polynomials import Polynomial
from catalogs.networks.shapes import Kind, shape_class

#: What the library calls the operators of a kind unless a file states it.
USUAL_OPERATOR: Final = {
    "gemm": "addmm",
    "attention": "scaled_dot_product_attention",
    "convolution": "convolution",
    "normalisation": "native_layer_norm",
    "softmax": "_softmax",
}

#: Dims that are 1 in each dimension unless a file states them.
ONES: Final = ("stride", "dilation")

#: An expression, or a plain integer.
Expression = int | str


class SizeBlock(YamlBlock):
    """One size of a job."""

    default: PositiveInt
    minimum: PositiveInt = 1
    maximum: PositiveInt | None = None
    multiple_of: PositiveInt = 1
    meaning: str = ""


class OperatorBlock(YamlBlock):
    """One operator; `dims` are those of its kind, and its bytes the usual ones of these dims unless stated.

    A stride and a dilation that are not stated are 1; an operator that is not stated is the usual one of its kind.
    """

    name: str
    kind: Kind
    operator: str | None = None
    dims: dict[str, Expression | list[Expression]]
    reads: Expression | None = None
    writes: Expression | None = None
    weights: NonNegativeInt = 0
    dtype: str | None = None

    def build(self) -> Operator:
        """Return the operator.

        Raises:
            InputError: The dims are not those of its kind, or an expression is invalid.
        """
        fields = {f.name: f for f in dataclasses.fields(shape_class(self.kind))}
        listed = listed_dims(self.kind)
        stated: dict[str, Expression | list[Expression]] = dict(self.dims)
        if isinstance(kernel := self.dims.get("kernel"), list):
            stated = {**{key: [1] * len(kernel) for key in ONES}, **stated}
        for key, value in stated.items():
            if key not in fields:
                raise InputError(f"a {self.kind} has no such dim", key, nearest_name(key, fields) or ", ".join(fields))
            if isinstance(value, list) != (key in listed):
                form = "a list with one entry per dimension" if key in listed else "one expression"
                raise InputError(f"the dim {key} of a {self.kind} is {form}", value)
        for key, field in fields.items():
            if key not in stated and field.default is dataclasses.MISSING:
                raise InputError(f"operator {self.name}: a {self.kind} needs the dim {key}")
        lengths = {len(stated[key]) for key in listed}  # type: ignore[arg-type]  # lists, as checked above
        if listed and (len(lengths) != 1 or not lengths & {1, 2, 3}):
            raise InputError(f"operator {self.name}: {', '.join(sorted(listed))} have one to three equal entries")
        dims = {
            key: tuple(map(Polynomial.of, value)) if isinstance(value := stated[key], list) else Polynomial.of(value)
            for key in fields
            if key in stated
        }
        reads, writes = usual_traffic(self.kind, dims, self.weights)
        reads = reads if self.reads is None else Polynomial.of(self.reads)
        writes = writes if self.writes is None else Polynomial.of(self.writes)
        operator = self.operator or USUAL_OPERATOR.get(self.kind, self.kind)
        return Operator(self.name, self.kind, operator, dims, reads, writes, self.weights, self.dtype)


class RepeatBlock(YamlBlock):
    """Operators that run several times in a row."""

    repeat: Expression
    operators: list[ItemBlock] = Field(min_length=1)

    def build(self) -> Repeat:
        """Return the repeat.

        Raises:
            InputError: An operator or an expression is invalid.
        """
        return Repeat(Polynomial.of(self.repeat), tuple(item.build() for item in self.operators))


def _kind_of_item(data: object) -> str:
    return "repeat" if isinstance(data, Mapping) and "repeat" in data else "operator"


#: An operator, or several that repeat: an item with the key `repeat`.
ItemBlock = Annotated[
    Annotated[RepeatBlock, Tag("repeat")] | Annotated[OperatorBlock, Tag("operator")], Discriminator(_kind_of_item)
]


class StageBlock(YamlBlock):
    """The part of a network file that describes one stage."""

    runs: Expression = 1
    module: str
    dtype: str
    parameters: NonNegativeInt
    peak_activation_bytes: list[Expression] = Field(min_length=1)
    notices: tuple[str, ...] = ()
    operators: list[ItemBlock] = Field(min_length=1)

    def build(self, name: str) -> Stage:
        """Return the stage.

        Raises:
            InputError: An operator or an expression is invalid.
        """
        return Stage(
            name,
            Polynomial.of(self.runs),
            tuple(item.build() for item in self.operators),
            self.parameters,
            self.dtype,
            tuple(map(Polynomial.of, self.peak_activation_bytes)),
            self.module,
            self.notices,
        )


class DerivedBlock(YamlBlock):
    """A derived size: one of floor, ceil, min, max of two expressions."""

    function: Literal["floor", "ceil", "min", "max"]
    of: tuple[Expression, Expression]

    def build(self, name: str) -> DerivedSize:
        """Return the size.

        Raises:
            InputError: An expression is invalid.
        """
        return DerivedSize(name, self.function, Polynomial.of(self.of[0]), Polynomial.of(self.of[1]))


class NetworkBlock(YamlBlock):
    """The content of a network file: its sizes and stages, and where they come from.

    The floating-point operations of the default job follow from the rest. Files state them for `header.py`.
    """

    name: str
    family: str
    source: str
    traced_with: str
    default_job_flops: NonNegativeInt | None = None
    sizes: dict[str, SizeBlock] = Field(min_length=1)
    derived: dict[str, DerivedBlock] = Field(default_factory=dict)
    stages: dict[str, StageBlock] = Field(min_length=1)

    def build(self) -> NeuralNetwork:
        """Return the network, whose expressions all have their sizes.

        Raises:
            InputError: An expression is invalid or names an unknown size, a default is not a valid size, or the
                operators do not add up to the stated floating-point operations.
        """
        network = NeuralNetwork(
            self.name,
            self.family,
            tuple(JobSize(name, **size.model_dump()) for name, size in self.sizes.items()),
            tuple(stage.build(name) for name, stage in self.stages.items()),
            tuple(size.build(name) for name, size in self.derived.items()),
            self.source,
            self.traced_with,
        )
        _check_names(network)
        flops = network.default_job_flops
        if self.default_job_flops not in (None, flops):
            rule = "default_job_flops is the number of floating-point operations of the job of default sizes"
            raise InputError(rule, self.default_job_flops, str(flops))
        return network


def _check_names(network: NeuralNetwork) -> None:
    """Check that every name in an expression is a size.

    Raises:
        InputError: A name is not a size of the network.
    """
    known = {size.name for size in network.sizes}
    for name in (*known, *(derived.name for derived in network.derived)):
        if not name.isidentifier() or keyword.iskeyword(name) or name == ITEMSIZE:
            raise InputError("the name of a size has letters, digits and underscores", name, "height")
    for derived in network.derived:
        _check(derived.first.names | derived.second.names, known, f"size {derived.name}")
        known.add(derived.name)
    for stage in network.stages:
        _check(stage.runs.names, known, f"stage {stage.name}")
        used = {name for peak in stage.peak for name in peak.names}
        for operator, times in stage.operators:
            flat = [d for dim in operator.dims.values() for d in (dim if isinstance(dim, tuple) else (dim,))]
            _check({name for dim in (*flat, times) for name in dim.names}, known, f"operator {operator.name}")
            used |= operator.reads.names | operator.writes.names
        _check(used, known | {ITEMSIZE}, f"stage {stage.name}")


def _check(names: Iterable[str], known: set[str], where: str) -> None:
    for name in sorted(names):
        if name not in known:
            raise InputError(
                f"{where} uses a name that is no size", name, nearest_name(name, known) or sorted(known)[0]
            )


def read_network(path: Path) -> NeuralNetwork:
    """Return the network in a file.

    Raises:
        InputError: The file cannot be read or breaks a rule; the message names the file.
    """
    data = read_yaml(path)
    block = validate_as(NetworkBlock, data, path.name)
    try:
        return block.build()
    except InputError as error:
        raise InputError(f"{path.name}: {error.rule}", error.value, error.nearest, error.hint) from None


def list_networks() -> tuple[str, ...]:
    """Return the names of the networks of the catalog, the user's own included."""
    return tuple(sorted(_paths()))


def _paths() -> dict[str, Path]:
    """Return the file of every network; one of the user's own takes precedence over a shipped one of its name."""
    folders = (FOLDER, user_folder("networks"))
    return {path.stem: path for folder in folders for path in folder.glob("*.yaml") if path.name != NAMES.name}


def find_network(name: str) -> str | None:
    """Return the network of the catalog that a name means, by any spelling; None if it means none.

    Raises:
        InputError: The name fits several networks.
    """
    return load_names().find(name, _paths())


@lru_cache(maxsize=32)
def load_network(name: str) -> NeuralNetwork:
    """Return a network by any of its names, or by the path of its file (NAME.yaml).

    Raises:
        InputError: There is no such network, or its file is invalid.
    """
    return read_network(network_path(name))


def network_path(name: str) -> Path:
    """Return the file of a network by any of the network's names, or by the path of the file (NAME.yaml).

    Raises:
        InputError: There is no such network.
    """
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    paths = _paths()
    found = load_names().find(name, paths)
    if found is None:
        raise InputError("unknown network", name, load_names().nearest(name, paths), "see catalog list networks")
    return paths[found]


def write_network(network: NeuralNetwork, path: Path) -> None:
    """Write a network file, which `read_network` reads as an equal network.

    Raises:
        InputError: The file cannot be written.
    """
    write_atomically(path, [network_text(network)])


def network_text(network: NeuralNetwork) -> str:
    """Return the text of a network's file."""
    lines = [
        f"{key}: {_quoted(value)}\n"
        for key, value in (
            ("name", network.name),
            ("family", network.family),
            ("source", network.source),
            ("traced_with", network.traced_with),
        )
    ]
    lines += [f"default_job_flops: {network.default_job_flops}\n", "sizes:\n"]
    for size in network.sizes:
        fields = {f.name: getattr(size, f.name) for f in dataclasses.fields(size) if f.name != "name"}
        changed = {k: v for k, v in fields.items() if k == "default" or v != SizeBlock.model_fields[k].default}
        lines.append(f"  {size.name}: {_flow(changed)}\n")
    if network.derived:
        lines.append("derived:\n")
    for derived in network.derived:
        of = [_number(derived.first), _number(derived.second)]
        lines.append(f"  {derived.name}: {_flow({'function': derived.function, 'of': of})}\n")
    lines.append("stages:\n")
    for stage in network.stages:
        lines += _stage_lines(stage)
    return "".join(lines)


def _stage_lines(stage: Stage) -> list[str]:
    lines = [f"  {stage.name}:\n"]
    if stage.runs != Polynomial.of(1):
        lines.append(f"    runs: {_scalar(_number(stage.runs))}\n")
    lines += [f"    module: {_quoted(stage.module)}\n", f"    dtype: {stage.dtype}\n"]
    lines += [f"    parameters: {stage.parameters}\n", "    peak_activation_bytes:\n"]
    lines += [f"      - {_scalar(_number(peak))}\n" for peak in stage.peak]
    if stage.notices:
        lines += ["    notices:\n", *(f"      - {_quoted(notice)}\n" for notice in stage.notices)]
    return [*lines, "    operators:\n", *_item_lines(stage.items, "      ")]


def _item_lines(items: Iterable[Operator | Repeat], indent: str) -> list[str]:
    lines = []
    for item in items:
        if isinstance(item, Repeat):
            lines.append(f"{indent}- repeat: {_scalar(_number(item.times))}\n{indent}  operators:\n")
            lines += _item_lines(item.items, indent + "    ")
        else:
            lines.append(f"{indent}- {_flow(_operator_fields(item))}\n")
    return lines


def _operator_fields(operator: Operator) -> dict[str, Any]:
    dims = {
        key: [_number(d) for d in dim] if isinstance(dim, tuple) else _number(dim)
        for key, dim in operator.dims.items()
        if key not in ONES or dim != tuple([Polynomial.of(1)] * len(dim if isinstance(dim, tuple) else ()))
    }
    fields: dict[str, Any] = {"name": operator.name, "kind": operator.kind}
    if operator.operator != USUAL_OPERATOR.get(operator.kind, operator.kind):
        fields["operator"] = operator.operator
    fields["dims"] = dims
    reads, writes = usual_traffic(operator.kind, operator.dims, operator.weights)
    if operator.reads != reads:
        fields["reads"] = _number(operator.reads)
    if operator.writes != writes:
        fields["writes"] = _number(operator.writes)
    return fields | {k: v for k, v in (("weights", operator.weights), ("dtype", operator.dtype)) if v}


def _number(polynomial: Polynomial) -> Expression:
    constant = polynomial.constant
    return int(constant) if constant is not None and constant.denominator == 1 else str(polynomial)


def _flow(value: Any) -> str:
    """Return a value in YAML's form on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


#: Characters that a plain scalar may have in this writer, besides letters and digits; a `*` may not come first.
_PLAIN = frozenset("_.*+-/ ")
_RESERVED = frozenset({"", "null", "true", "false", "yes", "no", "on", "off", "y", "n", "~"})


def _scalar(value: Any) -> str:
    if not isinstance(value, str):
        return str(value)
    starts = value[:1].isalpha() or (value[:1].isdigit() and "*" in value)  # no number looks like that
    plain = starts and all(c.isascii() and (c.isalnum() or c in _PLAIN) for c in value)
    return value if plain and value == value.strip() and value.lower() not in _RESERVED else _quoted(value)


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
