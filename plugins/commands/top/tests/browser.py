"""A real browser, driven over its own protocol: a page at any size, in light or dark, and what it complained about."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
from contextlib import asynccontextmanager, suppress

import aiohttp

QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")
START_S = 30.0


class Page:
    """One tab; `complaints` are errors of its script, refused requests and breaches of its policy."""

    def __init__(self, socket):
        self._socket, self._ids, self._answers = socket, itertools.count(1), {}
        self.complaints = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self):
        async for message in self._socket:
            data = json.loads(message.data)
            if "id" in data:
                self._answers.pop(data["id"]).set_result(data)
            elif data["method"] == "Runtime.exceptionThrown":
                self.complaints.append(data["params"]["exceptionDetails"]["exception"].get("description"))
            elif data["method"] == "Log.entryAdded" and data["params"]["entry"]["level"] == "error":
                self.complaints.append(data["params"]["entry"]["text"])

    async def call(self, method, **params):
        id = next(self._ids)
        self._answers[id] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": id, "method": method, "params": params})
        answer = await asyncio.wait_for(self._answers[id], START_S)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    async def open(self, url, width=1280, height=900, dark=False):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call("Page.navigate", url=url)

    async def value(self, script):
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script):
        """Wait until an expression is true; the page redraws itself once a second."""
        for _ in range(200):
            if await self.value(f"Boolean({script})"):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"never true: {script}; the page says {await self.value('document.body.innerText')!r}")

    async def picture(self):
        """The whole page as PNG."""
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    async def close(self):
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading


@asynccontextmanager
async def browser(profile):
    """A tab of a browser of its own, which ends with the block."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    assert found, "this test needs the Debian package chromium"
    argv = [found, "--headless", "--no-sandbox", "--disable-gpu", *QUIET, f"--user-data-dir={profile}"]
    nowhere = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *argv, "--remote-debugging-port=0", "about:blank", stdout=nowhere, stderr=nowhere
    )
    try:
        async with aiohttp.ClientSession() as session, session.ws_connect(await _tab(session, profile)) as socket:
            page = Page(socket)
            try:
                for domain in ("Page", "Runtime", "Log"):
                    await page.call(f"{domain}.enable")
                yield page
            finally:
                await page.close()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _tab(session, profile):
    """The address of the first tab's socket, once there is one."""
    async with asyncio.timeout(START_S):
        while True:
            with suppress(OSError, IndexError, aiohttp.ClientError):
                port = (profile / "DevToolsActivePort").read_text().split()[0]
                async with session.get(f"http://127.0.0.1:{port}/json/list") as reply:
                    tabs = [tab for tab in await reply.json() if tab["type"] == "page"]
                    return tabs[0]["webSocketDebuggerUrl"]
            await asyncio.sleep(0.05)
