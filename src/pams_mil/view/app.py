"""The routes. The browser names slides by key and tiles by number; nothing it sends ever becomes a path."""

from __future__ import annotations

import asyncio
import functools
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from pams_mil.atomic import strict_json
from pams_mil.errors import BagError, PamsError, SlideError
from pams_mil.view.guard import Guard
from pams_mil.view.heat import Heat
from pams_mil.view.session import HiddenError, Session
from pams_mil.view.verdict_journal import ReviewError

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")
READERS = max(4, min(8, 2 * (os.cpu_count() or 2)))
_TYPES = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}  # fmt: skip


class Viewer:
    """Answers requests from a session; slow work runs in a bounded number of threads."""

    def __init__(self, session: Session, *, readers: int = READERS) -> None:
        self.session = session
        self._pool = ThreadPoolExecutor(readers, thread_name_prefix="reader")
        # Heatmaps are computed one at a time anyway; waiting for one must not keep a reader from showing tiles.
        self._heat_pool = ThreadPoolExecutor(1, thread_name_prefix="heat")
        # As many seats as threads: requests wait here, where they can still be dropped, not in the pool. Thumbnails
        # queue for one heatmap at a time, so that the slide that is opened waits for one of them at most.
        self._seats, self._thumbnail_seat = asyncio.Semaphore(readers), asyncio.Semaphore(1)
        static = resources.files("pams_mil.view").joinpath("static").iterdir()
        self._files = {
            entry.name: (entry.read_bytes(), kind)
            for entry in static if (kind := _TYPES.get(Path(entry.name).suffix)) is not None
        }  # fmt: skip

    def routes(self) -> list[Route]:
        """Everything there is to ask for."""
        stated = {"overview": self.session.overview, "worklist": self.session.worklist, "reviews": self.session.reviews}
        return [
            Route("/", self.file),
            Route("/static/{name}", self.file),
            *(Route(f"/api/{name}", functools.partial(self.told, work)) for name, work in stated.items()),
            Route("/api/order", self.order),
            Route("/api/slide/{key}", self.slide),
            Route("/api/verdict/{key}", self.verdict, methods=["POST"]),
            Route("/api/region/{key}", self.region, methods=["POST"]),
            Route("/heat/{key}", self.heat),
            Route("/tile/{key}/{level}/{column}/{row}", self.tile),
            Route("/thumbnail/{key}", self.thumbnail),
            Route("/patch/{key}/{index}", self.patch),
            Route("/export/reviews.csv", self.table),
            Route("/export/{key}.geojson", self.geojson),
        ]

    async def file(self, request: Request) -> Response:
        """The page and what it loads: fixed files, read once."""
        content, kind = self._files.get(request.path_params.get("name", "index.html"), (None, ""))
        return _missing("file") if content is None else Response(content, media_type=kind)

    async def told(self, work: Callable[[], dict[str, Any]], request: Request) -> Response:
        """What the session says: what does not change, all cases, or all verdicts."""
        return JSONResponse(await self._read(work))

    async def order(self, request: Request) -> Response:
        """What the order is worth."""
        worth = strict_json(await self._read(self.session.order_worth))  # a rate over no cases is not a number
        return Response(worth, media_type="application/json")

    async def slide(self, request: Request) -> Response:
        """One slide."""
        return JSONResponse(await self._read(self.session.slide, self._row(request)))

    async def verdict(self, request: Request) -> Response:
        """Take a verdict; what another window did meanwhile is never overwritten."""
        row = self._row(request)
        content = await _json_object(request)
        try:
            await self._read(self.session.give, row, content)
        except ReviewError as error:
            # With the present state: the window shows it instead of what it had.
            return JSONResponse({"problem": str(error), **self.session.verdict_of(row)}, error.code)
        return JSONResponse(await self._read(self.session.verdict_of, row))

    async def region(self, request: Request) -> Response:
        """Mark a region or take a mark away."""
        content, slide = await _json_object(request), self.session.cases.slide_ids[self._row(request)]
        await self._read(self.session.journal.mark, slide, content)
        return JSONResponse({"regions": self.session.journal.regions.get(slide, [])})

    async def heat(self, request: Request) -> Response:
        """Values per tile."""
        heat = await self._heat_of(self._row(request))
        return Response(heat.packed(), media_type="application/octet-stream")

    async def tile(self, request: Request) -> Response:
        """A tile of the picture; numbers outside of the slide are refused before anything is read."""
        row = self._row(request, "tile")
        level, column, line = (_number(request.path_params[name]) for name in ("level", "column", "row"))
        if level is None or column is None or line is None:
            return _missing("tile")
        return await self._picture(request, lambda: self.session.tile(row, level, column, line))

    async def thumbnail(self, request: Request) -> Response:
        """The whole slide, small, with the heatmap unless it is hidden or missing."""
        row, heat = self._row(request), None
        if request.query_params.get("heat") == "1":
            async with self._thumbnail_seat:
                if await request.is_disconnected():
                    return Response(status_code=499)
                with suppress(BagError, HiddenError):
                    heat = await self._heat_of(row)
        return await self._picture(request, lambda: self.session.thumbnail(row, heat))

    async def patch(self, request: Request) -> Response:
        """The picture of one tile of the features, by its number."""
        row, index = self._row(request, "tile"), _number(request.path_params["index"])
        if index is None:
            return _missing("tile")
        heat = await self._heat_of(row)
        return await self._picture(request, lambda: self.session.patch(row, heat, index))

    async def table(self, request: Request) -> Response:
        """reviews.csv as it is now."""
        await self._read(self.session.journal.write_table)
        data = self.session.journal.table.read_bytes()
        return Response(data, media_type="text/csv", headers=_download("reviews.csv"))

    async def geojson(self, request: Request) -> Response:
        """Marked regions and tile values of a slide, for QuPath."""
        row = self._row(request)
        pieces = await self._read(self.session.geojson, row)
        name = f"{self.session.cases.keys[row]}.geojson"
        return StreamingResponse(pieces, media_type="application/geo+json", headers=_download(name))

    def close(self) -> None:
        """Stop the threads and close the slides."""
        # Not waiting: a thread may be reading from a slow disk, and Ctrl-C must end the server.
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._heat_pool.shutdown(wait=False, cancel_futures=True)
        self.session.shelf.close()

    def _row(self, request: Request, what: str = "slide") -> int:
        """The row of the key in the address; any other key ends the request, before anything is looked at."""
        row = self.session.cases.rows.get(request.path_params["key"])
        if row is None:
            raise HTTPException(404, f"There is no such {what}.")
        return row

    async def _heat_of(self, row: int) -> Heat:
        return await asyncio.get_running_loop().run_in_executor(self._heat_pool, self.session.heat_of, row)

    async def _read(self, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        async with self._seats:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    async def _picture(self, request: Request, work: Callable[[], bytes | None]) -> Response:
        async with self._seats:
            if await request.is_disconnected():  # scrolled past while waiting: do not read it at all
                return Response(status_code=499)
            data = await asyncio.get_running_loop().run_in_executor(self._pool, work)
        return _missing("tile") if data is None else Response(data, media_type="image/jpeg")


def build_app(session: Session, *, token: str, hosts: frozenset[str], port: int) -> Guard:
    """The application behind its guard."""
    viewer = Viewer(session)
    app = Starlette(routes=viewer.routes(), exception_handlers={Exception: _failed, PamsError: _problem})
    return Guard(app, token=token, hosts=hosts, port=port, close=viewer.close)


async def _problem(request: Request, error: Any) -> Response:
    """A refusal in words, with the status that says whose problem it is."""
    return PlainTextResponse(
        str(error), 404 if isinstance(error, (BagError, SlideError)) else getattr(error, "code", 500)
    )


async def _failed(request: Request, error: Exception) -> Response:
    return PlainTextResponse("The viewer failed at this request; the terminal says more.", 500)


async def _json_object(request: Request) -> dict[str, Any]:
    try:
        content = json.loads(await request.body(), parse_int=_whole, parse_constant=_whole)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise HTTPException(400, "Expected one JSON object with numbers of ordinary size.")
    return content


def _whole(text: str) -> int:
    """A whole number that a browser can have meant; JSON may hold any, and NaN."""
    if len(text) > 16:
        raise ValueError(text)
    return int(text)


def _number(text: str) -> int | None:
    """A small whole number, or None: thousands of digits would be slow to read.

    >>> _number("12"), _number("-1"), _number("9" * 5000), _number("١")
    (12, None, None, None)
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


def _missing(what: str) -> Response:
    return PlainTextResponse(f"There is no such {what}.", 404)


def _download(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}
