"""A block of a JSON document: one pydantic class that builds it, writes it and reads it back."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, field_validator

from catalogs.io.output_files import finite

M = TypeVar("M", bound=BaseModel)


class JsonBlock(BaseModel):
    """Base class of every block of a document that commands write and read.

    Keys that are not set are not written, so a document that was read is written again with the same keys. Types are
    strict: a string is not accepted as a number or a truth value. Keys that a newer minor version added are ignored.
    Numbers that are not finite become None, because JSON cannot represent them.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    @field_validator("*", mode="before")
    @classmethod
    def _only_finite(cls, value: Any) -> Any:
        return finite(value)

    def document(self) -> dict[str, Any]:
        """Return the block as JSON data: the keys that are set, every number finite or None."""
        data: dict[str, Any] = finite(self.model_dump(exclude_unset=True))
        return data


def every_key_set(model: M) -> M:
    """Return the model with every field marked as set, so that a block around it writes all of its keys."""
    return type(model).model_validate(model.model_dump())
