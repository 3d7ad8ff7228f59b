"""Small sessions for the tests of the viewer: made slides, bags with coordinates, stored attention, predictions."""

from __future__ import annotations

import gc
import threading
import warnings
from pathlib import Path

import h5py
import httpx
import numpy as np
from tests.wsi import scenes

from pams_mil.data import Bag, BagInfo, write_bag
from pams_mil.view.guard import OWN_HEADER
from pams_mil.view.opening import Asked, open_session
from pams_mil.view.serve import open_server

CLASSES = "name: grades\nlevels: [group, grade]\nclasses:\n  Harmless: [none, mild]\n  Grave: [severe]\n"
SIDE = 100.0
OWN = {OWN_HEADER: "1", "sec-fetch-site": "same-origin"}


def write_cohort(folder: Path, *, ids=("s-1", "s-2", "s-3"), slides=True, labels=True, probabilities=True) -> Path:
    """Three slides of 800 x 800 pixels with 64 tiles each; the tile at column 3, row 2 has the highest attention."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "classes.yaml").write_text(CLASSES)
    names = ("none", "mild", "severe")
    header = ["slide_id", "patient_id", "split", *(["target"] if labels else []), "prediction"]
    lines = [",".join([*header, *(f"p_{name}" for name in names if probabilities)])]
    for number, slide in enumerate(ids):
        if slides:
            scenes.write(folder / "slides" / f"{slide}.tiff", seed=number)
        write_tiles(folder, slide)
        p = np.roll([0.7, 0.2, 0.1], number)
        call = names[int(p.argmax())]
        cells = [slide, f"p-{number // 2}", "test", *([names[number % 3]] if labels else []), call]
        lines.append(",".join([*cells, *(str(value) for value in p if probabilities)]))
    (folder / "predictions.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_tiles(folder: Path, slide: str, *, coords=True, side: float | None = SIDE) -> None:
    grid = np.array([(x, y) for y in range(8) for x in range(8)])
    info = BagInfo(encoder="tiny", tile_px=100, tile_px0=side, mpp=1.0)
    places = (grid * int(SIDE)).astype(np.int64) if coords else None
    write_bag(folder / "features" / f"{slide}.h5", Bag(np.ones((64, 4), np.float32), coords_px0=places, info=info))
    attention = np.linspace(0.001, 0.01, 64)
    attention[2 * 8 + 3] = 0.5
    (folder / "attention").mkdir(exist_ok=True)
    with h5py.File(folder / "attention" / f"{slide}.h5", "w") as file:
        file.create_dataset("attention", data=attention)


def session_of(folder: Path, **changes):
    asked = {
        "paths": [folder / "predictions.csv"], "classes": str(folder / "classes.yaml"), "features": folder / "features",
        "slides": folder / "slides" if (folder / "slides").is_dir() else None, "reviewer": "reader", **changes,
    }  # fmt: skip
    return open_session(Asked(**asked))


SERVED = []
"""Servers to close after the test, also one that failed."""


class Served:
    """A real server in a thread."""

    def __init__(self, session):
        self.server = open_server(session, port=0)
        self.port, self.token, self.app = self.server.port, self.server.token, self.server.app
        self.uvicorn = self.server.uvicorn()
        # On a busy machine requests of a browser may take longer than a user would wait.
        self.uvicorn.config.timeout_graceful_shutdown = 20
        self.thread = threading.Thread(target=self.uvicorn.run, kwargs={"sockets": [self.server.socket]}, daemon=True)
        self.thread.start()

    def close(self):
        self.client.close()
        self.uvicorn.should_exit = True
        self.thread.join(60)
        self.server.close()
        if self.uvicorn.server_state.connections:
            # A browser opened them while the server went, and nobody closes them: let them go here and in silence, or
            # they would be a warning, and so an error, in some later test.
            self.uvicorn = None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                gc.collect()


def client_of(session, *, open_it=True):
    """A browser's side of the viewer, and the server; the cookie is there already unless it shall not be."""
    server = Served(session)
    SERVED.append(server)
    client = server.client = httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=600)
    if open_it:
        client.cookies.set(server.app.cookie, server.app.secret)
    return client, server


def read(client, session, row, action="read", **content):
    key = session.cases.keys[row]
    seen = session.journal.last_event(session.cases.slide_ids[row])
    return client.post(f"/api/verdict/{key}", json={"action": action, "seen": seen, **content}, headers=OWN)


def give(session, slide, action="read", **content):
    seen = session.journal.last_event(slide)
    session.give(session.cases.row_of[slide], {"action": action, "seen": seen, **content})
    return session.journal.state(slide)


def predictions(folder, order, *, labels=(0, 1, 2)):
    """The cohort's predictions with the rows of probabilities and the labels shuffled: another model, other truths."""
    names = ("none", "mild", "severe")
    lines = ["slide_id,patient_id,split,target,prediction,p_none,p_mild,p_severe"]
    for number, turn in enumerate(order):
        p = np.roll([0.7, 0.2, 0.1], turn)
        cells = [f"s-{number + 1}", f"p-{number // 2}", "test", names[labels[number]], names[int(p.argmax())], *p]
        lines.append(",".join(map(str, cells)))
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "predictions.csv").write_text("\n".join(lines) + "\n")
    return folder / "predictions.csv"
