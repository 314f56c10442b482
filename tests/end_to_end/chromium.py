"""A headless Chromium at the other end of two pipes (the DevTools protocol)."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PASS_PIPES = "import os, sys; [os.dup2(int(sys.argv[i]), i + 2) for i in (1, 2)]; os.execv(sys.argv[3], sys.argv[3:])"
LIMIT = 120.0
"""Seconds without a word after which a browser is given up."""


def find_chromium() -> str | None:
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One page: ask it for values, press its keys, and see what it said and asked for."""

    def __init__(self, orders: int, answers: int) -> None:
        self.orders, self.answers, self.read = orders, answers, b""
        self.events: list[dict[str, Any]] = []
        self.number, self.session = 0, ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        order = {"id": self.number, "method": method, "params": params}
        order |= {"sessionId": self.session} if self.session else {}
        os.write(self.orders, json.dumps(order).encode() + b"\0")
        while True:
            message = self._next(method)
            if message.get("id") == self.number:
                assert "error" not in message, message
                return dict(message["result"])
            self.events.append(message)

    def _next(self, method: str) -> dict[str, Any]:
        while b"\0" not in self.read:
            assert select.select([self.answers], [], [], LIMIT)[0], f"the browser says nothing to {method}"
            found = os.read(self.answers, 1 << 16)
            assert found, f"the browser went away at {method}"
            self.read += found
        message, _, self.read = self.read.partition(b"\0")
        return dict(json.loads(message))

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next("Page.navigate"))

    def value(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        press = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **press)
        self.call("Input.dispatchKeyEvent", type="keyUp", **press)

    def of(self, *methods: str) -> list[dict[str, Any]]:
        """Events of these kinds so far."""
        return [event for event in self.events if event["method"] in methods]


@contextmanager
def browse(chromium: str, profile: Path) -> Iterator[Page]:
    orders, to_browser = os.pipe()
    from_browser, answers = os.pipe()
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (orders, answers)]  # clear of 3 and 4, where they must go
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"]
    flags += ["--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}"]
    command = [sys.executable, "-c", PASS_PIPES, *map(str, ends), chromium, *flags]
    process = subprocess.Popen(command, pass_fds=ends, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for end in (orders, answers, *ends):
        os.close(end)
    try:
        page = Page(to_browser, from_browser)
        yield page
    finally:
        os.close(to_browser)
        os.close(from_browser)
        process.kill()
        process.wait()
