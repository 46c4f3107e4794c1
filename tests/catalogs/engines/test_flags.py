"""The tables of flags: every flag is described once, and keys are those of deployment.yaml."""

from __future__ import annotations

from collections import Counter
from typing import get_args, get_type_hints

import pytest
from pydantic import TypeAdapter

from catalogs.deployments.queueing import Queueing
from catalogs.deployments.schema import Deployment
from catalogs.engines.files import load_engine
from catalogs.engines.flags import FOLDER, FlagFile, flag_table
from catalogs.errors import InputError
from catalogs.io.yaml_files import read_yaml, validate_as

NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def file_of(name: str) -> FlagFile:
    return validate_as(FlagFile, read_yaml(FOLDER / f"{name}.yaml"), name)


@pytest.mark.parametrize("name", NAMES)
def test_every_flag_is_described_once(name: str) -> None:
    file = file_of(name)
    spelled = [s for flag, row in file.flags.items() for s in (flag, *row.aliases)]
    spelled += [s for group in file.others for flags in group.flags.values() for flag in flags for s in flag.split()]
    assert [s for s, n in Counter(spelled).items() if n > 1] == []
    assert [s for s in spelled if not s.startswith("-")] == []
    keys = [row.key for row in file.flags.values() if row.key is not None]
    assert [key for key, n in Counter(keys).items() if n > 1] == []
    named = {row.key: Counter(row.names.values()) for row in file.flags.values()}
    repeated = {row.key: [n for n in row.also if named[row.key][n] == 1] for row in file.flags.values()}
    assert {key: names for key, names in repeated.items() if names} == {}


@pytest.mark.parametrize("name", NAMES)
def test_keys_and_values_are_those_of_deployments(name: str) -> None:
    for row in file_of(name).flags.values():
        if row.key is None:
            continue
        first, _, last = row.key.partition(".")
        kind = Deployment.model_fields[first].annotation
        if last:
            blocks = (Queueing,) if first == "queue" else get_args(kind)
            kind = next(get_type_hints(block)[last] for block in blocks if hasattr(block, "model_fields"))
        stated = {*row.names, *row.also.values()} - {None}
        stated |= {row.sets} if row.takes in ("switch", "bare") else set()
        for value in stated:
            TypeAdapter(kind).validate_python(value)


@pytest.mark.parametrize("name", NAMES)
def test_profiles_have_the_flags_of_their_table(name: str) -> None:
    assert load_engine(name).flags == flag_table(name).by_key
    assert flag_table(name).source


def test_an_unknown_table_names_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        flag_table("vlm")
    assert caught.value.nearest == "vllm"
    assert flag_table("vllm").nearest("--max-num-sequences") == "--max-num-seqs"
