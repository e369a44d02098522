"""A headless Chromium, driven by its debugging protocol through pipes: no library, no port.

Debian: `apt-get install --no-install-recommends chromium-headless-shell`.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
# How Chromium calls a request that ended with its page, or before its answer.
CUT_OFF = ("net::ERR_ABORTED", "net::ERR_EMPTY_RESPONSE")
FROM_US, TO_US = 3, 4  # the descriptors that Chromium reads from and writes to
WAIT = """new Promise((resolve, reject) => {
  const start = Date.now();
  const look = () => {
    let value; try { value = (%s); } catch { value = null; }
    if (value) resolve(value);
    else if (Date.now() - start > 60000) reject(new Error("never came true"));
    else setTimeout(look, 20);
  };
  look();
})"""


def find_browser() -> str | None:
    """The path of a Chromium on this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """One page of the browser."""

    def __init__(self, read: int, write: int) -> None:
        self._read = read
        self._write = write
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """The result of a command; events on the way are collected."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, url: str) -> None:
        """Show a page, and wait until it is loaded."""
        self._load("Page.navigate", url=url)

    def reload(self) -> None:
        """Load the page anew, and wait until it is loaded."""
        self._load("Page.reload")

    def evaluate(self, expression: str) -> object:
        """The value of an expression of JavaScript in the page, once its promise is kept."""
        result = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, (expression, result["exceptionDetails"])
        value: object = result["result"].get("value")
        return value

    def wait_for(self, expression: str) -> object:
        """The value of an expression, once it is true."""
        return self.evaluate(WAIT % expression)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def resize(self, width: int, height: int, *, phone: bool = False, scale: float = 1) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=phone,
        )  # fmt: skip

    def complaints(self) -> list[str]:
        """Errors of scripts, and what the browser logged, such as breaches of its policy.

        Without requests that a reload cut off: they fail although nothing is wrong.
        """
        names = ("Runtime.exceptionThrown", "Log.entryAdded")
        canceled = {
            event["params"]["requestId"]
            for event in self.events
            if event.get("method") == "Network.loadingFailed"
            and event["params"]["errorText"] in CUT_OFF
        }
        return [
            json.dumps(event)
            for event in self.events
            if event.get("method") in names
            and event["params"].get("entry", {}).get("networkRequestId") not in canceled
        ]

    def _load(self, method: str, **parameters: object) -> None:
        # A script that runs while the page is being replaced ends by an error.
        begun = len(self.events)
        self.call(method, **parameters)
        while not any(
            event.get("method") == "Page.loadEventFired" for event in self.events[begun:]
        ):
            self.events.append(self._receive())

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            content = os.read(self._read, 2**20)
            assert content, "the browser has ended"
            self._rest += content
        message, _, self._rest = self._rest.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed


@contextmanager
def open_tab(folder: Path) -> Iterator[Tab]:
    """A tab of a browser of its own, whose profile lies in `folder`."""
    program = find_browser()
    assert program is not None
    from_us, to_browser = os.pipe()
    from_browser, to_us = os.pipe()
    command = [
        program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--no-first-run", f"--user-data-dir={folder}", "--remote-debugging-pipe",
    ]  # fmt: skip

    # Through descriptors that cannot be 3 or 4 themselves.
    high = [os.dup2(from_us, 50, inheritable=False), os.dup2(to_us, 51, inheritable=False)]
    script = f'exec {FROM_US}<&50 {TO_US}>&51 50<&- 51>&-; exec "$@"'
    with subprocess.Popen(
        ["/bin/bash", "-c", script, "bash", *command], pass_fds=high, stderr=subprocess.DEVNULL
    ) as browser:
        for descriptor in (from_us, to_us, *high):
            os.close(descriptor)
        try:
            yield Tab(from_browser, to_browser)
        finally:
            browser.terminate()
            browser.wait()
            os.close(from_browser)
            os.close(to_browser)
