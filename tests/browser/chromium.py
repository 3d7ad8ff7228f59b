"""A real Chromium driven as a person would: mouse, keys and eyes, over the DevTools protocol on a pipe."""

from __future__ import annotations

import base64
import io
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-sync --disable-background-networking "
    "--disable-component-update --disable-quic --hide-scrollbars --remote-debugging-pipe --force-color-profile=srgb"
)
KEYS = {
    "Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35,
    "PageUp": 33, "PageDown": 34, "Tab": 9,
}  # fmt: skip
PATIENCE_S = 600.0
ON_PIPES = (
    "import fcntl, os, sys\n"
    "ours = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 20) for number in sys.argv[1:3]]\n"
    "os.dup2(ours[0], 3), os.dup2(ours[1], 4)\n"
    "os.execv(sys.argv[3], sys.argv[3:])\n"
)
"""Chromium expects its commands on descriptor 3 and answers on 4; the two are moved there, then it takes over."""


class Browser:
    def __init__(self, profile):
        to_read, to_write = os.pipe()
        from_read, from_write = os.pipe()
        browser = [CHROMIUM, *FLAGS.split(), f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", ON_PIPES, str(to_read), str(from_write), *browser],
            pass_fds=(to_read, from_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(from_write)
        self._out, self._in, self._buffer, self._number = to_write, from_read, b"", 0
        self.events = []

    def page(self, *, width=1400, height=900, dark=False):
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        return Page(self, session, width, height, dark)

    def call(self, method, parameters=None, session=None):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters or {}}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == message["id"]:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _receive(self):
        limit = time.monotonic() + PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, limit - time.monotonic()))
            if not ready:
                raise TimeoutError("Chromium does not answer")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise RuntimeError("Chromium has ended")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        if "id" not in message:
            self.events.append(message)
        return message

    def close(self):
        try:
            self.call("Browser.close")
        except (RuntimeError, OSError, TimeoutError):
            self.process.kill()
        self.process.wait(20)
        os.close(self._out)
        os.close(self._in)


class Page:
    def __init__(self, browser, session, width, height, dark):
        self.browser, self.session = browser, session
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height, dark=dark)

    def call(self, method, **parameters):
        return self.browser.call(method, parameters, self.session)

    def resize(self, width, height, *, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)

    def go(self, address):
        self.call("Page.navigate", url=address)

    def js(self, code):
        found = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{code}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, code, what=None):
        limit = time.monotonic() + PATIENCE_S
        while time.monotonic() < limit:
            try:
                found = self.js(f"Boolean({code})")
            except RuntimeError:  # the page is not there yet
                found = None
            if found:
                return found
            time.sleep(0.05)
        raise TimeoutError(what or code)

    def text(self, selector):
        return self.js(f"document.querySelector({json.dumps(selector)}).innerText").replace("\u00a0", " ")

    def place(self, selector):
        code = (
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'nearest'}); const r = e.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        return self.js(code)

    def click(self, selector):
        self.wait(f"document.querySelector({json.dumps(selector)})?.offsetParent", f"{selector} to click")
        x, y = self.place(selector)
        self.mouse("mousePressed", x, y, clickCount=1)
        self.mouse("mouseReleased", x, y, clickCount=1)

    def mouse(self, kind, x, y, *, button="left", **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, **more)

    def drag(self, start, end):
        self.mouse("mousePressed", *start, clickCount=1)
        for step in range(1, 6):
            share = step / 5
            x, y = (a + share * (b - a) for a, b in zip(start, end, strict=True))
            self.mouse("mouseMoved", x, y, buttons=1)
        self.mouse("mouseReleased", *end, clickCount=1)

    def touch(self, start, end=None):
        """A finger that taps, or moves from start to end."""
        self.call("Page.bringToFront")  # a page in the background draws nothing, and a touch waits for that
        self.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=1)
        places = [start] if end is None else [
            tuple(a + step / 5 * (b - a) for a, b in zip(start, end, strict=True)) for step in range(6)
        ]  # fmt: skip
        for number, (x, y) in enumerate(places):
            kind = "touchMove" if number else "touchStart"
            self.call("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def paper(self):
        """The page as it is laid out on A4, and the size of the PDF in bytes."""
        pdf = base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])
        self.call("Emulation.setEmulatedMedia", media="print")
        self.call("Emulation.setDeviceMetricsOverride", width=718, height=1047, deviceScaleFactor=1, mobile=False)
        return pdf

    def key(self, key):
        known = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS.get(key, ord(key[0].upper()))}
        text = {} if key in KEYS else {"text": key}
        self.call("Input.dispatchKeyEvent", type="keyDown", **known, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **known)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def choose(self, selector, value):
        self.js(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(value)};"
            " for (const kind of ['input', 'change']) e.dispatchEvent(new Event(kind, {bubbles: true})); })()"
        )

    def screenshot(self, path=None):
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        if path is not None:
            path.write_bytes(data)
        return Image.open(io.BytesIO(data)).convert("RGB")

    def complaints(self):
        """Errors the page made: exceptions, refused scripts and styles, failed loads of its own files."""
        self.js("0")
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            if event["method"] == "Runtime.exceptionThrown":
                found.append(event["params"]["exceptionDetails"].get("exception", {}).get("description", "exception"))
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                entry = event["params"]["entry"]
                found.append(f"{entry['text']} {entry.get('url', '')}")
        return found

    def axe(self):
        """What axe-core complains about: rule and element."""
        self.js((Path(__file__).parent / "axe.min.js").read_text("utf-8") + ";0")
        return self.js(
            "axe.run(document, {resultTypes: ['violations']}).then(found => found.violations.flatMap(rule =>"
            " rule.nodes.map(node => `${rule.id}: ${node.html.slice(0, 120)} ${node.failureSummary}`)))"
        )

    def requested(self):
        return [
            event["params"]["request"]["url"]
            for event in self.browser.events
            if event.get("sessionId") == self.session and event["method"] == "Network.requestWillBeSent"
        ]
