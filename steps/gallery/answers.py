"""What the gallery answers to each path: the page, its data as JSON, and images."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated
from urllib.parse import unquote

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from imagekiln.steps.errors import BadInput, Incomplete, KilnError, Missing, TryAgain, cut_name
from imagekiln.steps.gallery.gallery import Gallery
from imagekiln.steps.gallery.images import ImageFile
from imagekiln.steps.gallery.queries import Condition, PageQuery, RowNumber

JSON_TYPE = "application/json"
HTML_TYPE = "text/html; charset=utf-8"
IMAGE_PATH = re.compile(r"/(image|thumbnail|row)/([^/]+)/([^/]+)")
# An image of a run never changes.
IMAGE_CACHING = "private, max-age=3600"
PAGE_ADAPTER = TypeAdapter(PageQuery)
WHERE_ADAPTER: TypeAdapter[tuple[Condition, ...]] = TypeAdapter(
    Annotated[tuple[Condition, ...], Field(max_length=16)]
)
NUMBER_ADAPTER: TypeAdapter[int | None] = TypeAdapter(RowNumber | None)
Options = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Reply:
    """What is sent for a request."""

    content: bytes
    content_type: str = JSON_TYPE
    status: HTTPStatus = HTTPStatus.OK
    caching: str = "no-store"


def answer(gallery: Gallery, page: bytes, path: str, options: Options) -> Reply:
    """The answer to a path with the options after its question mark; failures as sentences."""
    try:
        return _answer(gallery, page, path, options)
    except ValidationError as error:
        return refuse(_describe(error), HTTPStatus.BAD_REQUEST)
    except KilnError as error:
        return refuse(str(error), _status_of(error))


def refuse(sentence: str, status: HTTPStatus) -> Reply:
    """An answer that says why there is none."""
    return Reply(_to_json({"error": sentence}), status=status)


def _answer(gallery: Gallery, page: bytes, path: str, options: Options) -> Reply:
    if path == "/":
        return Reply(page, HTML_TYPE)
    if path in DATA_PATHS:
        return Reply(_to_json(DATA_PATHS[path](gallery, options)))
    match = IMAGE_PATH.fullmatch(path)
    if match is None:
        raise Missing(f"{cut_name(path)}: there is nothing here. Open the first page.")
    noun, run_id, image_id = match[1], unquote(match[2]), unquote(match[3])
    number = NUMBER_ADAPTER.validate_python(options.get("number"))
    if noun == "image":
        return _image_reply(gallery.file(run_id, image_id, number))
    if noun == "thumbnail":
        return _image_reply(gallery.thumbnail(run_id, image_id, number))
    return Reply(_to_json(gallery.details(run_id, image_id, number)))


def _page(gallery: Gallery, options: Options) -> object:
    fields: dict[str, object] = dict(options)
    fields["where"] = _where(options)
    query = PAGE_ADAPTER.validate_python(fields)
    return gallery.page(query)


def _count(gallery: Gallery, options: Options) -> object:
    images = gallery.count(_where(options))
    return {"images": images}


def _trends(gallery: Gallery, options: Options) -> object:
    column = options.get("column")
    return gallery.trends(column)


def _state(gallery: Gallery, _: Options) -> object:
    return gallery.state()


DATA_PATHS: dict[str, Callable[[Gallery, Options], object]] = {
    "/state": _state,
    "/images": _page,
    "/count": _count,
    "/trends": _trends,
}


def _where(options: Options) -> tuple[Condition, ...]:
    content = options.get("where", "[]")
    return WHERE_ADAPTER.validate_json(content)


def _image_reply(file: ImageFile) -> Reply:
    return Reply(
        file.content,
        file.media_type,
        caching=IMAGE_CACHING,
    )


def _status_of(error: KilnError) -> HTTPStatus:
    if isinstance(error, Missing):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, BadInput):
        return HTTPStatus.BAD_REQUEST
    if isinstance(error, Incomplete | TryAgain):
        return HTTPStatus.SERVICE_UNAVAILABLE
    return HTTPStatus.INTERNAL_SERVER_ERROR


def _describe(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    problem = first["msg"]
    return f"{cut_name(place) or 'where'}: {problem}. Correct the query."


def _to_json(value: object) -> bytes:
    # Escaped throughout, since a lone surrogate in somebody's text cannot be encoded. JSON has
    # neither infinity nor not-a-number.
    jsonable = to_jsonable_python(value, inf_nan_mode="null")
    return json.dumps(jsonable, allow_nan=False).encode()
