"""Foreign JSON checked at the door: what is missing or of the wrong type becomes one line."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from catalogs.errors import InputError


class Foreign(BaseModel):
    """A document of another project: the keys that are read; others may come and go."""

    model_config = ConfigDict(extra="ignore")


M = TypeVar("M", bound=Foreign)


def parse(model: type[M], document: Any, what: str, source: str) -> M:
    """The document as `model`; InputError names the first key that is wrong."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(x) for x in first["loc"]) or "document"
        raise InputError(f"not a whole {what} ({where}: {first['msg']})", source) from None
