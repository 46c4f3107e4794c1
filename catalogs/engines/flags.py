"""Tables of the command-line flags of engines: one file for each command line in data/launch/.

A flag is described once. Writers of start commands take the flags of deployment keys from here (catalogs/launch), and
the reader of start commands (catalogs/launch/reading) parses with the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from pydantic import Field

from catalogs.errors import InputError, nearest_name
from catalogs.io.yaml_files import DATA, YamlBlock, read_yaml, validate_as

FOLDER: Final = DATA / "launch"

#: What follows a flag. A `switch` may be negated with `--no-`; a `bare` flag cannot. An `optional` value may be absent,
#: and a `list` takes every word up to the next flag.
Takes = Literal["int", "float", "text", "json", "list", "optional", "switch", "bare"]

#: The consequence of ignoring a flag. `no effect`: the times of requests stay the same. `not simulated`: they may
#: change, and the simulation does not show it. `deprecated`: the engine has removed the flag or ignores it.
Effect = Literal["no effect", "not simulated", "deprecated"]

_WITHOUT_VALUE: Final = ("switch", "bare")


class FlagRow(YamlBlock):
    """A flag that decides keys of deployment.yaml.

    Attributes:
        key: The key that the flag states, `block.key` for a key of a block; null: the reader has code for it.
        takes: What follows the flag.
        aliases: Further spellings.
        sets: The value that the flag without a value states.
        names: The engine's names of values, by the value in deployment.yaml; other values are written as they are.
        also: Further names that the engine accepts, with the value in deployment.yaml; null: the engine's default.
        trap: What goes wrong with this flag, as one sentence with its source.
    """

    key: str | None = None
    takes: Takes
    aliases: tuple[str, ...] = ()
    sets: bool | str = True
    names: dict[str, str] = Field(default_factory=dict)
    also: dict[str, str | None] = Field(default_factory=dict)
    trap: str = ""


class FlagGroup(YamlBlock):
    """Flags that decide no key of deployment.yaml, for one reason.

    Attributes:
        why: Why a simulation does without these flags, or what it leaves out by doing so.
        kind: What a simulation without these flags means.
        flags: The flags by what follows them; a flag with aliases is written "--flag -f".
    """

    why: str
    kind: Effect
    flags: dict[Takes, list[str]]


class VariableGroup(YamlBlock):
    """Environment variables that decide no key of deployment.yaml, for one reason; `names` may end in `*`."""

    why: str
    kind: Effect
    names: list[str]


class FlagFile(YamlBlock):
    """One file of data/launch.

    Attributes:
        style: How the engine parses its command line. "argparse" accepts unique abbreviations of a flag.
        underscores: Whether underscores in a flag are read as dashes.
        dotted: Whether `--json.key value` states one key of a JSON value.
        flags: The flags that decide keys of deployment.yaml, by their name.
        others: All other flags.
        variables: Environment variables that the engine reads.
        source: Where the flags were read.
        as_of: The month in which they were read.
    """

    style: Literal["argparse", "click", "plain"]
    underscores: bool = False
    dotted: bool = False
    flags: dict[str, FlagRow]
    others: list[FlagGroup] = Field(default_factory=list)
    variables: list[VariableGroup] = Field(default_factory=list)
    source: str
    as_of: str


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of an engine's command line."""

    name: str
    takes: Takes
    row: FlagRow | None  # None: it decides no key, for the reason that `kind` and `why` state
    kind: Effect = "no effect"
    why: str = ""

    @property
    def bare(self) -> bool:
        """Return whether no value follows the flag."""
        return self.takes in _WITHOUT_VALUE


@dataclass(frozen=True, slots=True)
class FlagTable:
    """The flags of one command line, by every spelling, and the environment variables that its engine reads.

    The settings of the parser are those of `FlagFile`.
    """

    name: str
    style: str
    underscores: bool
    dotted: bool
    flags: dict[str, Flag]
    variables: tuple[VariableGroup, ...]
    source: str

    @property
    def by_key(self) -> dict[str, str]:
        """Return the flag of each key of deployment.yaml that has one of its own."""
        rows = ((flag.row.key, flag.name) for flag in self.flags.values() if flag.row is not None)
        return {key: name for key, name in reversed(list(rows)) if key is not None and "." not in key}

    def row(self, key: str) -> FlagRow:
        """Return the row of the flag that states a key."""
        return next(f.row for f in self.flags.values() if f.row is not None and f.row.key == key)

    def name_of(self, key: str, value: str) -> str:
        """Return the engine's name of a value of a key."""
        return self.row(key).names.get(value, value)

    def is_ignored(self, written: str) -> bool:
        """Return whether a flag of the engine decides no key of deployment.yaml and no code reads its value."""
        name = "--" + written[2:].replace("_", "-") if self.underscores and written.startswith("--") else written
        flag = self.flags.get(name)
        return flag is not None and flag.row is None

    def nearest(self, written: str) -> str | None:
        """Return the flag whose spelling is most similar to `written`, or None."""
        return nearest_name(written, self.flags, cutoff=0.6)


@cache
def flag_table(name: str) -> FlagTable:
    """Return the table of a command line, such as "vllm".

    Raises:
        InputError: There is no such table, or its file breaks a rule.
    """
    path = FOLDER / f"{name}.yaml"
    known = sorted(p.stem for p in FOLDER.glob("*.yaml"))
    if name not in known:
        raise InputError("unknown table of flags", name, nearest_name(name, known) or known[0])
    file = validate_as(FlagFile, read_yaml(path), path.name)
    flags: dict[str, Flag] = {}
    for flag, row in file.flags.items():
        flags |= dict.fromkeys((flag, *row.aliases), Flag(flag, row.takes, row))
    for group in file.others:
        for takes, names in group.flags.items():
            for written in names:
                spellings = written.split()
                found = Flag(spellings[0], takes, None, group.kind, group.why)
                flags |= {spelling: found for spelling in spellings if spelling not in flags}
    return FlagTable(
        name, file.style, file.underscores, file.dotted, flags, tuple(file.variables), f"{file.source} ({file.as_of})"
    )


def flags_of(named: object) -> object:
    """Return the flag of each deployment key: those of a table for its name, and a mapping as it is."""
    return flag_table(named).by_key if isinstance(named, str) else named
