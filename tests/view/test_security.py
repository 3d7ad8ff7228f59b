"""Every row of the security table: a permitted request passes, the forbidden one beside it is refused."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import os
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from importlib import resources
from pathlib import Path

import httpx
import pytest
from tests.view.sessions import OWN, client_of, read, session_of, write_cohort

from pams_mil.errors import ConfigError
from pams_mil.view import guard
from pams_mil.view.app import Viewer
from pams_mil.view.serve import open_server
from pams_mil.wsi.slide import Slide


def addresses(session):
    key = session.cases.keys[0]
    return [
        "/", "/static/main.js", "/api/overview", "/api/worklist", "/api/reviews", "/api/order", f"/api/slide/{key}",
        f"/heat/{key}", f"/tile/{key}/10/0/0", f"/thumbnail/{key}", f"/patch/{key}/0", "/export/reviews.csv",
        f"/export/{key}.geojson",
    ]  # fmt: skip


def test_the_list_of_addresses_is_complete(session):
    shapes = {re.sub(r"\{\w+\}", "*", route.path) for route in Viewer(session).routes()}
    asked = {re.sub(session.cases.keys[0], "*", path) for path in addresses(session)}
    asked = {re.sub(r"(?<=/)\d+", "*", path).replace("main.js", "*") for path in asked}
    assert shapes - asked == {"/api/verdict/*", "/api/region/*"}


# --- token


def test_nothing_is_answered_without_the_token(session):
    client, server = client_of(session, open_it=False)
    for path in addresses(session):
        assert client.get(path).status_code == 403, path
    assert client.get("/?token=wrong").status_code == 403
    assert not client.cookies
    client.cookies.set(server.app.cookie, "wrong")
    assert client.get("/api/worklist").status_code == 403
    client.cookies.clear()
    client.cookies.set("pams_view_1", server.app.secret)  # the cookie of a viewer on another port
    assert client.get("/api/worklist").status_code == 403


def test_the_token_becomes_a_cookie_that_scripts_and_other_sites_cannot_use(session):
    client, server = client_of(session, open_it=False)
    answer = client.get(f"/?token={server.token}")
    assert (answer.status_code, "url=/" in answer.text) == (200, True)
    assert server.token not in answer.text + answer.headers["set-cookie"]
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert all(client.get(path).status_code == 200 for path in addresses(session))


def test_the_token_opens_one_browser(session):
    first, server = client_of(session, open_it=False)
    assert first.get(f"/?token={server.token}").status_code == 200
    assert first.get(f"/?token={server.token}").status_code == 200  # a reload; the cookie opens it
    with httpx.Client(base_url=first.base_url) as other:
        assert other.get(f"/?token={server.token}").status_code == 403
        other.cookies.set(server.app.cookie, server.token)
        assert other.get("/api/worklist").status_code == 403


def test_no_program_is_started_with_the_token(session, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    server = open_server(session)
    server.open_browser()
    page = Path(opened[0].removeprefix("file://"))
    assert server.token not in opened[0]
    assert server.address in page.read_text()
    assert (stat.S_IMODE(page.stat().st_mode), stat.S_IMODE(page.parent.stat().st_mode)) == (0o600, 0o700)
    server.close()
    assert not page.exists()


def test_tokens_are_long_random_and_compared_in_constant_time(session, monkeypatch):
    client, server = client_of(session)
    other = open_server(session)
    assert len(server.token) >= 43
    assert server.token != other.token
    compared = []
    monkeypatch.setattr(guard.hmac, "compare_digest", lambda a, b: compared.append(a) or a == b)
    assert client.get("/api/overview").status_code == 200
    client.cookies.clear()
    client.get("/?token=abc")
    assert len(compared) == 2
    assert len(server.app.secret) >= 43
    assert hmac.compare_digest is guard.hmac.compare_digest
    other.close()


# --- this machine, this name


def test_only_loopback_unless_insisted(session):
    server = open_server(session)
    assert server.socket.getsockname()[0] == "127.0.0.1"
    server.close()
    with pytest.raises(ConfigError, match="no encryption"):
        open_server(session, host="0.0.0.0")
    insisted = open_server(session, host="0.0.0.0", allow_network=True)
    insisted.close()


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}", ""])
def test_other_host_names_are_refused(session, host):
    client, server = client_of(session)
    assert client.get("/api/overview", headers={"host": f"localhost:{server.port}"}).status_code == 200
    assert client.get("/api/overview", headers={"host": host.format(port=server.port)}).status_code == 421
    assert client.get(f"/?token={server.token}", headers={"host": host.format(port=server.port)}).status_code == 421


# --- other web pages


def test_no_answer_lets_other_origins_read(client, session):
    for path in addresses(session):
        answer = client.get(path, headers={"origin": "http://evil.example"})
        assert not [name for name in answer.headers if name.startswith("access-control")]
    asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    answer = client.options(f"/api/verdict/{session.cases.keys[0]}", headers=asked)
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pictures_and_data_are_not_given_to_foreign_pages(client, session, site):
    foreign = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
    for path in addresses(session):
        assert client.get(path, headers={**foreign, "sec-fetch-site": "same-origin"}).status_code == 200
        assert client.get(path, headers=foreign).status_code == 403, path
    link = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert client.get("/", headers=link).status_code == 200  # following a link to the page itself is fine
    assert client.get("/", headers={**link, "sec-fetch-dest": "iframe"}).status_code == 403


BAD_POSTS = {
    "another site": ({**OWN, "sec-fetch-site": "cross-site"}, "application/json", 403),
    "another port": ({**OWN, "sec-fetch-site": "same-site"}, "application/json", 403),
    "another origin": ({"x-pams-view": "1", "origin": "http://evil.example"}, "application/json", 403),
    "nobody": ({"x-pams-view": "1"}, "application/json", 403),
    "no header": ({"sec-fetch-site": "same-origin"}, "application/json", 403),
    "a form": (OWN, "text/plain", 415),
}


@pytest.mark.parametrize("case", BAD_POSTS)
def test_a_change_must_come_from_the_page_itself(client, session, case):
    headers, kind, status = BAD_POSTS[case]
    path = f"/api/verdict/{session.cases.keys[0]}"
    body = b'{"action": "read", "class": "none", "seen": 0}'
    assert client.post(path, content=body, headers={**headers, "content-type": kind}).status_code == status
    assert session.journal.revision == 0
    assert client.post(path, content=body, headers={**OWN, "content-type": "application/json"}).status_code == 200
    assert session.journal.revision == 1


def test_a_change_is_small_and_says_so(client, session):
    path = f"/api/verdict/{session.cases.keys[0]}"
    json_type = {**OWN, "content-type": "application/json"}
    assert client.post(path, content=b"[" * (guard.MOST_BODY + 1), headers=json_type).status_code == 413
    assert client.post(path, content=iter([b"{}"]), headers=json_type).status_code == 413  # no length
    huge = b'{"action": "read", "class": "none", "seen": 0, "seconds": 1' + b"0" * 400 + b"}"
    box = b'{"action": "region", "class": "none", "box": [0, 0, 5, 1' + b"0" * 400 + b"]}"
    assert client.post(path.replace("verdict", "region"), content=box, headers=json_type).status_code == 400
    for body in (b"[" * 50_000, b"\xff", b"[]", b"{", huge):
        assert client.post(path, content=body, headers=json_type).status_code == 400
    assert session.journal.revision == 0


# --- paths


@pytest.mark.parametrize(
    "key", ["%2e%2e", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/etc/passwd", "s-1", "s-1.tiff", "0", "\0"]
)
def test_the_client_never_names_a_path(client, session, key):
    key = key.replace("\0", "%00")
    for shape in ("/api/slide/{}", "/tile/{}/10/0/0", "/thumbnail/{}", "/heat/{}", "/static/{}", "/export/{}.geojson"):
        answer = client.get(shape.format(key))
        assert answer.status_code in (404, 307), shape
        assert b"root:" not in answer.content


def test_links_out_of_the_slide_folder_are_not_followed(tmp_path):
    outside = write_cohort(tmp_path / "outside", ids=("s-1",))
    folder = write_cohort(tmp_path / "cohort", ids=("s-1", "s-2"))
    (folder / "slides" / "s-1.tiff").unlink()
    (folder / "slides" / "s-1.tiff").symlink_to(outside / "slides" / "s-1.tiff")
    session = session_of(folder)
    client, _ = client_of(session)
    first, second = session.cases.keys
    assert client.get(f"/tile/{second}/10/0/0").status_code == 200
    assert "leads out" in client.get(f"/api/slide/{first}").json()["problem"]
    assert client.get(f"/patch/{first}/0").status_code == 404
    session.shelf.close()
    (folder / "slides" / "s-2.tiff").unlink()  # swapped after the start
    (folder / "slides" / "s-2.tiff").symlink_to(outside / "slides" / "s-1.tiff")
    assert "outside" in client.get(f"/api/slide/{second}").json()["problem"]


def test_reviews_never_go_into_the_slide_folder(cohort):
    with pytest.raises(ConfigError, match="inside the folder of slides"):
        session_of(cohort, reviews=cohort / "slides" / "reviews")
    assert sorted(path.suffix for path in (cohort / "slides").iterdir()) == [".tiff"] * 3


# --- scripts


def test_every_answer_has_the_policy(client, session):
    wrong = ["/nowhere", "/tile/x/0/0/0", f"/tile/{session.cases.keys[0]}/99/0/0"]
    for path in [*addresses(session), *wrong]:
        answer = client.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"


def test_the_page_builds_text_as_text_and_loads_nothing_from_elsewhere():
    for entry in resources.files("pams_mil.view").joinpath("static").iterdir():
        text = entry.read_text()
        if entry.name.startswith("openseadragon") or not entry.name.endswith((".js", ".html", ".css")):
            continue
        for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "javascript:"):
            assert danger not in text, entry.name
        elsewhere = set(re.findall(r"https?://[^\s\"')]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not elsewhere, entry.name
        assert not re.search(r"<script(?![^>]*src=)|\son\w+=", text), entry.name


# --- patients


def test_label_and_macro_images_are_never_read(client, session, monkeypatch):
    import openslide

    touched = []
    for name in ("associated_images", "get_thumbnail"):
        monkeypatch.setattr(openslide.OpenSlide, name, property(lambda self, name=name: touched.append(name) or {}))
    session.shelf.close()
    for path in addresses(session):
        assert client.get(path).status_code == 200
    assert touched == []
    for name in ("label", "macro", "thumbnail"):
        assert client.get(f"/tile/{session.cases.keys[0]}/{name}/0/0").status_code == 404
        assert client.get(f"/associated/{session.cases.keys[0]}/{name}").status_code == 404


def test_no_log_of_what_was_looked_at(cohort, tmp_path):
    command = [
        sys.executable, "-m", "pams_mil", "view", cohort / "predictions.csv", "--classes", cohort / "classes.yaml",
        "--slides", cohort / "slides", "--no-browser", "--reviews", tmp_path / "reviews", "--reviewer", "reader",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    running = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    address = running.stdout.readline().strip()
    with httpx.Client() as browser:
        assert browser.get(address).status_code == 200
        base = address.split("/?")[0]
        keys = browser.get(f"{base}/api/worklist").json()["key"]
        assert browser.get(f"{base}/tile/{keys[0]}/10/0/0").headers["content-type"] == "image/jpeg"
    running.send_signal(2)
    out, err = running.communicate(timeout=600)
    assert running.returncode in (0, 130)
    assert "/tile/" not in out + err
    assert address.split("token=")[1] not in out + err  # said once, on its own line


# --- overload


def test_numbers_outside_of_the_slide_are_refused_before_reading(client, session, monkeypatch):
    key = session.cases.keys[0]
    assert client.get(f"/tile/{key}/10/0/0").status_code == 200
    reads = []
    before = Slide.read
    monkeypatch.setattr(Slide, "read", lambda *given: reads.append(given) or before(*given))
    for place in ("11/0/0", "10/4/0", "10/0/4", "-1/0/0", "10/-1/0", "999999999/0/0", "1e3/0/0", f"10/{'9' * 5000}/0"):
        assert client.get(f"/tile/{key}/{place}").status_code == 404, place[:20]
    for index in ("64", "-1", "9" * 5000):
        assert client.get(f"/patch/{key}/{index}").status_code == 404
    assert reads == []


def test_few_tiles_are_read_at_once_and_none_for_who_has_left(session, monkeypatch):
    viewer = Viewer(session, readers=2)
    busy, most, guard_, done = [0], [0], threading.Lock(), []
    numbers, together = itertools.count(), threading.Barrier(2)

    def slow(*_):
        with guard_:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
            number = next(numbers)
        if number < 2:
            together.wait(600)  # so that two are at work at once, however busy the machine is
        time.sleep(0.02)
        with guard_:
            busy[0] -= 1
        done.append(1)
        return b"jpeg"

    monkeypatch.setattr(session, "tile", slow)

    class Asking:
        path_params = {"key": session.cases.keys[0], "level": "10", "column": "0", "row": "0"}  # noqa: RUF012

        def __init__(self, left):
            self.left = left

        async def is_disconnected(self):
            return self.left and bool(done)  # leaves while it waits for its turn

    async def many():
        return await asyncio.gather(*(viewer.tile(Asking(number > 1 and number % 2 == 1)) for number in range(20)))

    answers = asyncio.run(many())
    assert [answer.status_code for answer in answers] == [200, 200, *[200, 499] * 9]
    assert most[0] == 2
    assert len(done) == 11
    viewer.close()


def test_requests_half_sent_or_refused_do_not_lock_the_owner_out(session):
    client, server = client_of(session)
    whole = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port)) as stranger:
        stranger.sendall(whole)
        assert stranger.makefile("rb").read().startswith(b"HTTP/1.1 403")  # to its end: the connection is closed
    begun = []
    try:
        for number in range(300):
            stranger = socket.create_connection(("127.0.0.1", server.port))
            begun.append(stranger)
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1" if number % 2 else whole)
        with httpx.Client(base_url=client.base_url, cookies=client.cookies, timeout=600) as owner:
            assert owner.get("/api/overview").status_code == 200
    finally:
        for stranger in begun:
            stranger.close()


def test_small_answers_are_sent_at_once(session):
    _, server = client_of(session)
    assert server.server.socket.proto == socket.IPPROTO_TCP
    with socket.create_connection(("127.0.0.1", server.port)):
        while not server.uvicorn.server_state.connections:
            time.sleep(0.01)
        one = next(iter(server.uvicorn.server_state.connections))
        assert one.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_reader_is_not_named_by_the_browser(client, session):
    read(client, session, 0, **{"class": "none", "reviewer": "somebody else"})
    assert "somebody" not in session.journal.path.read_text()


def test_the_vendored_viewer_is_the_published_one():
    import hashlib

    static = resources.files("pams_mil.view").joinpath("static")
    digest = hashlib.sha256(static.joinpath("openseadragon.min.js").read_bytes()).hexdigest()
    notices = (Path(__file__).parents[2] / "THIRD_PARTY_NOTICES.md").read_text()
    assert digest == "c763b3e59c50d6bfe8e5db6f23e4a529602e6dc37a3425c30c853b2637324572"
    assert digest in notices
    assert "CodePlex Foundation" in static.joinpath("openseadragon.LICENSE.txt").read_text()
