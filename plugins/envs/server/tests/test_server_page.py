"""The page of the fleet, run by a real browser against a real server with real load."""

from __future__ import annotations

import asyncio
import re
import shutil

import aiohttp
import pytest
from inprocess import SPEC, TOKEN, TREE, client, create, room, served, until

from composer_core.protocols import ExecRequest, Failed
from composer_testing.fakes.sandbox import MemoryProvider

ATTACK = "<img src=x onerror=\"document.body.dataset.owned='yes'\">"
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")


def browser_argv(profile, *words):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    assert browser, "this test needs the Debian package chromium"
    return [browser, "--headless", "--no-sandbox", "--disable-gpu", *QUIET, f"--user-data-dir={profile}", *words]


async def seen(profile, url, *words):
    """The page after the browser has run it for some seconds of its own clock."""
    argv = browser_argv(profile, "--virtual-time-budget=4000", *words, url)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=asyncio.subprocess.DEVNULL)
    try:
        out, _ = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return out.decode()


async def load(running, provider):
    """Everything that the page shows happens at least once, and the node is full."""
    boxes = await create(provider, 4)
    await until(lambda: running.node.pools.warm == 3)
    for box in boxes:
        await box.exec(ExecRequest(("true",)))
    await boxes[0].fork(4)
    made = await provider.create(await provider.prepare(SPEC, TREE), 30)
    assert any(isinstance(child, Failed) for child in made)
    running.node.leases.open(ATTACK, 600.0, 0)
    await until(lambda: len(running.node.figures.points) >= 2)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page with the token, and without; and the figures at that moment."""
    folder = tmp_path_factory.mktemp("page")

    async def main():
        tables = {"admission": room(sandboxes=12), "server": {"nodes": ("http://127.0.0.1:9",)}}
        with pytest.MonkeyPatch.context() as patched:
            async with (
                served(folder, patched, MemoryProvider(), **tables) as running,
                client(running, group=3, wait_s=0.0) as provider,
            ):
                await load(running, provider)
                inside = await seen(folder / "one", f"{running.url}/#{TOKEN}", "--dump-dom")
                outside = await seen(folder / "two", running.url, "--dump-dom")
                wrong = await seen(folder / "two", f"{running.url}/#{TOKEN}-not", "--dump-dom")
                size = ("--dump-dom", "--window-size=500,900")
                narrow = await seen(folder / "one", f"{running.url}/#{TOKEN}", *size)
                shot = folder / "fleet.png"
                picture = (f"--screenshot={shot}", "--window-size=1280,1100")
                await seen(folder / "one", f"{running.url}/#{TOKEN}", *picture)
                async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
                    figures = await (await session.get(f"{running.url}/v1/fleet")).json()
                return inside, outside, wrong, shot.read_bytes(), figures["nodes"][0], narrow

    return asyncio.run(main())


def texts(page, tag, cls=""):
    found = re.findall(rf'<{tag}[^>]*class="[^"]*{cls}[^"]*"[^>]*>(.*?)</{tag}>', page)
    return [re.sub("<[^>]+>", "", text) for text in found]


def test_a_real_browser_shows_what_the_server_knows(pages):
    inside, _, _, _, figures, _ = pages
    tiles = dict(re.findall(r'<div class="label">([^<]+)</div><div class="value[^"]*">([^<]+)</div>', inside))
    assert tiles["Live sandboxes"] == str(figures["room"]["live"]) == "12"
    assert int(tiles["Refused"]) == sum(figures["queue"]["refused"].values()) > 0
    assert tiles["Pool hits"].endswith("%") and tiles["Orphans reaped"] == "0"
    assert texts(inside, "span", "chip") == ["live", "open", "does not answer"]
    for act in ("create", "fork", "exec"):
        assert re.search(rf"<td>{act}</td><td>[\d.,]+</td><td>[\d.,]+</td><td>[\d.,]+</td><td>\d+</td>", inside), act
    for word in ("Waiting for a core", "Stalled for memory", "refused: sandboxes", "127.0.0.1:9", "wait for room"):
        assert word in inside, word


def test_states_are_drawn_over_time_and_nothing_slips(pages):
    inside = pages[0]
    assert re.search(r'<path class="idle" d="M[\d.]+ [\d.]+L', inside)
    legend = dict(re.findall(r'<span class="key (\w+)"></span>\w+ <b>(\d+)</b>', inside))
    assert set(legend) == {"waiting", "starting", "warm", "idle", "busy", "paused", "ending"}
    assert int(legend["idle"]) + int(legend["warm"]) == 12
    for slip in ("NaN", "undefined", "[object", "Infinity"):
        assert slip not in inside


def test_the_chart_is_drawn_at_the_width_that_there_is_with_the_newest_in_sight(pages):
    found = [re.search(r'<svg viewBox="0 0 (\d+) \d+" width="(\d+)"', page) for page in (pages[0], pages[5])]
    (wide, _), (narrow, _) = [(int(one[1]), int(one[2])) for one in found]
    assert all(one[1] == one[2] for one in found), "nothing is scaled, so its words can be read"
    assert 220 <= narrow <= 500 < wide
    assert re.search(r'<path class="idle"', pages[5]) and ">now</text>" in pages[5]


def test_names_of_clients_stay_text(pages):
    inside = pages[0]
    assert "owned" not in re.search(r"<body[^>]*>", inside).group()
    assert "&lt;img src=x onerror=" in inside and "<img" not in inside


def test_without_the_token_the_page_asks_for_it_and_shows_nothing(pages):
    _, outside, wrong, _, figures, _ = pages
    for page in (outside, wrong):
        assert 'type="password"' in page
        assert figures["node"] not in page and "Live sandboxes" not in page
    assert "not the server's" in wrong and "not the server's" not in outside


def test_the_token_leaves_the_address_bar_and_the_page_asks_no_other_host(pages):
    inside = pages[0]
    assert TOKEN not in inside
    folder = __import__("composer_plugin_server").__path__[0]
    for name in ("fleet.html", "fleet.js", "fleet.css"):
        with open(f"{folder}/assets/{name}", encoding="utf-8") as file:
            assert set(re.findall(r"https?://[^\s\"'`]+", file.read())) <= {"http://www.w3.org/2000/svg"}


def test_a_screenshot_is_a_picture_and_not_a_blank(pages):
    shot = pages[3]
    assert shot.startswith(b"\x89PNG") and len(shot) > 40_000


def test_light_and_dark_have_the_same_colors_defined():
    folder = __import__("composer_plugin_server").__path__[0]
    with open(f"{folder}/assets/fleet.css", encoding="utf-8") as file:
        blocks = re.findall(r":root[^{]*\{([^}]*)\}", file.read())
    names = [set(re.findall(r"--[a-z]+(?=:)", block)) for block in blocks]
    assert len(names) == 3 and names[0] == names[1] == names[2]
    assert blocks[1].split() == blocks[2].split(), "dark by the system and dark by the button are one"
