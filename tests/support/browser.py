"""A browser without a window and without a network, driven by Chrome's DevTools protocol over a pipe."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WAIT_S = 120.0
"""No answer takes longer, even on a busy machine."""
OFFLINE = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
    "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9", "--remote-debugging-pipe",
)  # fmt: skip
"""Nothing can be resolved, nothing be fetched: a page that wants something from a network shows it."""


def browser_program() -> str | None:
    """The browser of this machine, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page of a browser, in a context. What it asks for and complains about is in `requests` and `complaints`."""

    def __init__(self, program: str) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._number = 0
        self._session = ""
        self._buffer = b""
        self._folder = tempfile.TemporaryDirectory(prefix="gradwire-browser-", ignore_cleanup_errors=True)
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        arguments = [program, *OFFLINE, f"--user-data-dir={self._folder.name}", "about:blank"]

        def place() -> None:  # the browser listens at 3 and answers at 4
            high = [os.dup(theirs_in), os.dup(theirs_out)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=place, close_fds=False,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        os.set_blocking(self._from, False)

    def __enter__(self) -> Browser:
        targets = self.ask("Target.getTargets")["targetInfos"]
        target = next(each["targetId"] for each in targets if each["type"] == "page")
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(WAIT_S)
        os.close(self._to)
        os.close(self._from)
        self._folder.cleanup()

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method, and return what it answers. Raises RuntimeError if it refuses, TimeoutError without one."""
        self._number += 1
        own = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            own["sessionId"] = self._session
        os.write(self._to, json.dumps(own).encode() + b"\0")
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            for said in self._heard():
                if said.get("id") == own["id"]:
                    if "error" in said:
                        raise RuntimeError(f"{method}: {said['error']}")
                    found: dict[str, Any] = said["result"]
                    return found
                self._note(said)
            time.sleep(0.01)
        raise TimeoutError(f"the browser has not answered {method}")

    def _heard(self) -> list[dict[str, Any]]:
        try:
            while part := os.read(self._from, 1 << 16):
                self._buffer += part
        except BlockingIOError:
            pass
        *whole, self._buffer = self._buffer.split(b"\0")
        return [json.loads(each) for each in whole]

    def _note(self, said: dict[str, Any]) -> None:
        method, what = said.get("method"), said.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(what["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning"):
            self.complaints.append(str(what["args"]))
        elif method == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.complaints.append(what["entry"]["text"])

    # --- what a reader does ------------------------------------------------------------------------------------------

    def open(self, path: Path, wide: int = 1200, high: int = 900, dark: bool = False) -> None:
        """Open a file, in a window of a size, and wait until it is drawn."""
        self.window(wide, high)
        self.dark(dark)
        self.ask("Page.navigate", url=path.resolve().as_uri())
        until = time.monotonic() + WAIT_S
        while self.run("document.readyState") != "complete" or self.run("location.href") == "about:blank":
            assert time.monotonic() < until, "the page is not there"
            time.sleep(0.02)
        self.settled()

    def window(self, wide: int, high: int = 900) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=wide, height=high, deviceScaleFactor=1, mobile=False)

    def dark(self, dark: bool) -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[feature])

    def run(self, code: str) -> Any:
        """The value of an expression in the page. Raises AssertionError if it throws."""
        found = self.ask("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def settled(self) -> None:
        """Wait until what was asked for has been drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def key(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def picture(self, path: Path, whole: bool = True) -> None:
        """The page, or what is seen of it, as a PNG."""
        found = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def paper(self, path: Path) -> None:
        """The page as it is printed, a PDF."""
        found = self.ask("Page.printToPDF", printBackground=True)
        path.write_bytes(base64.b64decode(found["data"]))
