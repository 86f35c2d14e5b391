"""What the pages take from a request: who asks, words of a bounded length, a filter."""

from typing import Annotated

from fastapi import Depends, Query
from pydantic import AfterValidator
from starlette.requests import Request

from redrive_ui import filters
from redrive_ui.filters import Filter
from redrive_ui.request_context import RequestContext, request_context

#: A text of the query string.
Word = Annotated[str, Query(max_length=300), AfterValidator(lambda text: filters.storable("text", text))]
#: Ids and keys are as long as who gave them liked.
Sought = Annotated[str, Query(max_length=4096), AfterValidator(lambda text: filters.storable("text", text))]
Requested = Annotated[RequestContext, Depends(request_context)]


def _filter_of(request: Request) -> Filter:
    query = request.query_params
    return Filter.read({**dict(query), "ids": query.getlist("ids"), "failures": query.getlist("failures")})


#: The filter that the query string describes.
Chosen = Annotated[Filter, Depends(_filter_of)]
