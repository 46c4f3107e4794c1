"""What `calibrate` measured on this machine, in files of the user's data folder that the hardware `local` reads."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self

from catalogs.errors import InputError
from catalogs.io.output_files import make_folder, write_atomically
from catalogs.io.yaml_files import YamlBlock, read_yaml, user_folder, validate_as
from catalogs.io.yaml_loader import dump_yaml


class MeasuredFacts(YamlBlock):
    """Base class of measured facts about one device.

    Attributes:
        FILE: Name of the file in the folder of the user's hardware.
        WHAT: What the file holds, for messages.
        machine: Full name of the measured device.
        as_of: The day of the measurement.
        source: What measured it.
    """

    FILE: ClassVar[str]
    WHAT: ClassVar[str]

    schema_version: Literal[1] = 1
    machine: str
    as_of: str
    source: str

    @classmethod
    def path(cls) -> Path:
        """Return the path of the file."""
        return user_folder("hardware") / cls.FILE

    @classmethod
    def find(cls, machine: str) -> Self | None:
        """Return the facts about a device; None where there are none, or they are about another device.

        Raises:
            InputError: The file is damaged.
        """
        path = cls.path()
        if not path.is_file():
            return None
        try:
            found = validate_as(cls, read_yaml(path), path.name)
        except InputError:
            rule = f"the measured {cls.WHAT} of this machine cannot be read: delete the file"
            raise InputError(rule, str(path)) from None
        return found if found.machine == machine else None

    def save(self) -> Path:
        """Write the facts and return the path of the file.

        Raises:
            InputError: The file cannot be written.
        """
        path = self.path()
        make_folder(path.parent)
        write_atomically(path, [dump_yaml(self.model_dump())])
        return path
