"""What a target writes: files by path, and what a reader does with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

_WIDTH: Final = 110


@dataclass(frozen=True, slots=True)
class Written:
    """base_url: where clients on this machine reach the deployment once the steps are done.

    notes: what must be there first, and where the target does other than the plan assumes.
    """

    files: dict[str, str]
    steps: Sequence[str]
    base_url: str
    notes: list[str] = field(default_factory=list)
    token_prompts: bool = True  # the server takes prompts as token ids


def to_yaml(*documents: dict[str, Any]) -> str:
    """One file of one or more documents, keys in the order given."""
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=_WIDTH, explicit_start=False)
    return text


class _Dumper(yaml.SafeDumper):
    """Block strings as blocks; no anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _string)
