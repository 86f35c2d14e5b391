"""The script and the style sheet of the pages."""

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import Response
from starlette.requests import Request

from redrive_ui.identity import Person
from redrive_ui.protection import Refused
from redrive_ui.rendering import FILE_TYPES
from redrive_ui.request_context import person_of

router = APIRouter()


@router.get("/static/{name}")
def static(request: Request, _who: Annotated[Person, Depends(person_of)], name: str) -> Response:
    files = request.app.state.redrive.templates.files
    if name not in files:
        raise Refused(404, "there is no such file")
    return Response(
        files[name],
        media_type=FILE_TYPES[Path(name).suffix],
        headers={"cache-control": "private, max-age=86400"},  # its address changes with its content
    )
