"""Uploads: model configurations, traces and results of load tests."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, File, UploadFile
from pydantic import BaseModel

from planner.web.api.state import PREFIX, Owner, State
from planner.web.store.uploads import StoredUpload
from planner.web.uploads import PREFIX as UPLOAD

router = APIRouter(prefix=PREFIX, tags=["uploads"])


class UploadView(BaseModel):
    """A stored file: the text that names it in questions, its name, its size, and what it probably is."""

    upload: str
    name: str
    bytes: int
    kind: str


@router.post("/uploads", status_code=201)
def upload(state: State, owner: Owner, file: Annotated[UploadFile, File()]) -> UploadView:
    """Store a file and return the text that names it in questions."""
    return _view(state.uploads.receive(file.file, file.filename, owner))


@router.get("/uploads/{reference}")
def show_upload(state: State, owner: Owner, reference: str) -> UploadView:
    """Show the name, size and kind of a stored file."""
    return _view(state.uploads.stored(reference, owner))


def _view(found: StoredUpload) -> UploadView:
    return UploadView(upload=f"{UPLOAD}{found.hash}", name=found.name, bytes=found.bytes, kind=found.kind)
