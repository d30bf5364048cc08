"""Chromium for tests of pages: opened without a window and without a network, asked through its DevTools pipe."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
"""The program, or None where it is not installed."""

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"),
    *("--remote-debugging-pipe", "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb"),
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
# Chromium reads what it is told from file descriptor 3 and answers on 4.
_START = """
import fcntl, os, sys
told, said = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(told, 3)
os.dup2(said, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""

_KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Tab": 9}


def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait until something is so, for two minutes."""
    end = time.monotonic() + 120
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"it does not become true: {what}")
        time.sleep(0.02)


class Browser:
    """One page; a context manager that ends the browser.

    Attributes:
        problems: What the console said that is an error or a warning, exceptions, and addresses that were asked for.
    """

    def __init__(self, width: int = 1280, height: int = 1000) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tddelta-chromium-", ignore_cleanup_errors=True)
        read, told = os.pipe()
        self._answers, said = os.pipe()
        self._told = os.fdopen(told, "wb", buffering=0)
        command = [str(CHROMIUM), *_FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(read), str(said), *command],
            pass_fds=(read, said),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(said)
        self._buffer, self._number, self._session = b"", 0, ""
        self.problems: list[str] = []
        try:
            target = self.ask("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.ask(f"{domain}.enable")
            self.resize(width, height)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._session = ""
        try:
            self.ask("Browser.close")
            self._process.wait(10)
        except (OSError, EOFError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._told.close()
        os.close(self._answers)
        self._folder.cleanup()

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol, and wait for its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._told.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(120)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError("Chromium does not answer")
            content = os.read(self._answers, 1 << 20)
            if not content:
                raise EOFError("Chromium has ended")
            self._buffer += content
        line, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        self._note(answer)
        return answer

    def _note(self, answer: Mapping[str, Any]) -> None:
        method, given = answer.get("method"), answer.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(given["exceptionDetails"].get("exception", given["exceptionDetails"])))
        elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.problems.append(given["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning"):
            self.problems.append(str(given["args"]))
        elif method == "Network.requestWillBeSent":
            url = given["request"]["url"]
            if not url.startswith(("file:", "data:", "blob:")):
                self.problems.append(f"asks the network for {url}")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, promises waited for."""
        result = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"].get("exception", result["exceptionDetails"])))
        return result["result"].get("value")

    def open(self, page: Path, until: str = "true") -> float:
        """Load a page; the seconds until an expression is true in it."""
        began = time.perf_counter()
        self.ask("Page.navigate", url=page.absolute().as_uri())
        self.wait(f"document.readyState === 'complete' && ({until})")
        return time.perf_counter() - began

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        until(lambda: self.run(f"Boolean({condition})"), f"{condition}; problems: {self.problems}")

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        """Give the page a size; on a phone also touch and a finer screen."""
        size = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        self.ask("Emulation.setDeviceMetricsOverride", **size)

    def theme(self, name: str) -> None:
        """Prefer "light" or "dark"."""
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key and let it go."""
        code = _KEYS.get(key, ord(key.upper()) if len(key) == 1 else 0)
        given: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        if len(key) == 1:
            given["text"] = key
        self.ask("Input.dispatchKeyEvent", type="keyDown", **given)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **{name: given[name] for name in given if name != "text"})

    def mouse(self, kind: str, x: float, y: float, *, down: bool = False) -> None:
        """A mouse event in the page: "moved", "pressed" or "released"."""
        button = "left" if down or kind != "moved" else "none"
        event = {"type": f"mouse{kind.capitalize()}", "x": x, "y": y, "button": button}
        self.ask("Input.dispatchMouseEvent", **event, buttons=int(down), clickCount=int(kind != "moved"))

    def click(self, selector: str) -> None:
        """Click in the middle of an element."""
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        x, y, width, height = self.box(selector)
        self.mouse("moved", x + width / 2, y + height / 2)
        self.mouse("pressed", x + width / 2, y + height / 2, down=True)
        self.mouse("released", x + width / 2, y + height / 2)

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """Place of an element on the screen: left, top, width, height."""
        found = self.run(
            f"(() => {{ const r = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            " return [r.left, r.top, r.width, r.height]; })()"
        )
        return found[0], found[1], found[2], found[3]

    def text(self, selector: str) -> str:
        """Text of an element."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).textContent"))

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """A picture of the screen, or of the whole page, as PNG."""
        result = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(result["data"]))
