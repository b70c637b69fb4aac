"""The live page, run by a real browser against the real command."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import time
from contextlib import AsyncExitStack, contextmanager
from importlib.resources import files

import aiohttp
import pytest
from browser import browser
from diary import ATTACK, CONTROLS, LEDGER, Diary

from composer_plugin_top.site import Site
from composer_plugin_top.watch import Watch

TOP = [sys.executable, "-m", "composer_core.cli", "top"]
PHONE, DESK = (390, 844), (1280, 900)


@contextmanager
def top(folder, *words):
    """The command as a process of its own, serving; gives its address and the process."""
    argv = [*TOP, folder, "--web", "0", *words]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", said)
        assert found, said + process.stdout.read()
        yield found[0], process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def diary(tmp_path):
    """A run under way whose every name is hostile."""
    diary = Diary(tmp_path, now_s=time.time() - 90)
    diary.start(name=f"run {ATTACK}")
    for step in range(1, 9):
        diary.now_s += 10
        for _ in range(6):
            diary.end(diary.begin(), void=f"sandbox {ATTACK}" if step == 2 else None)
        diary.begin()
        diary.step(step, staleness_max=float(step % 3), train_s=2.5, step_s=10.0, reward_mean=0.5, solve_rate=0.25)
        diary.publish(step)
    diary.fault(error=f"{ATTACK}\n{CONTROLS}", plugin=ATTACK)
    diary.now_s = time.time()
    hostile = {"group": 1, "slot": 2, "task": f"{ATTACK}{CONTROLS}", "for_s": 75.0}
    executor = {f"workers/{ATTACK}/running": 3, "workers/1/running": 2, "loop_lag_p99_ms": 1.5}
    diary.status(running=[hostile], waits_for=f"a token of {ATTACK}", executor=executor)
    return diary


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    """(loop, page) of one browser for all tests here: its start takes seconds."""
    stack = AsyncExitStack()
    with asyncio.Runner() as loop:
        page = loop.run(stack.enter_async_context(browser(tmp_path_factory.mktemp("profile"))))
        yield loop, page
        loop.run(stack.aclose())


@pytest.fixture
def in_browser(tab, diary):
    """Do `act(page, process)` with the page of the diary open; nothing may have gone wrong in it."""
    loop, page = tab

    def run(act, size=DESK, dark=False):
        async def main():
            with top(diary.folder) as (url, process):
                page.complaints.clear()
                await page.open(url, *size, dark)
                await page.until("document.querySelector('.tiles')")
                await act(page, process)
                assert page.complaints == []
                await page.open("about:blank")

        loop.run(main())

    return run


TILES = """Object.fromEntries([...document.querySelectorAll('.tile')].map(
    (tile) => [tile.querySelector('.label').textContent, tile.querySelector('.value').textContent]))"""
ROWS = """Object.fromEntries([...document.querySelectorAll('tr')].map(
    (row) => [row.cells[0].textContent, row.cells[row.cells.length - 1].textContent]))"""
CHARTS = "[...document.querySelectorAll('svg[role=img]')].map((chart) => chart.getAttribute('aria-label'))"


def test_a_real_browser_shows_what_the_folder_holds(in_browser):
    async def act(page, process):
        tiles, rows, charts = [await page.value(script) for script in (TILES, ROWS, CHARTS)]
        assert (tiles["Slots running"], tiles["Groups that wait"], tiles["Version"]) == ("9", "1", "3")
        assert (tiles["Staleness"], tiles["Trainer busy"], tiles["Void"], tiles["Lost"]) == ("2", "25 %", "6", "2")
        for name, count in (("groups admitted", 12), ("groups trained", 9), ("refused: weights gone", 1)):
            assert rows[name] == str(count)
        assert rows["void: sandbox"] == "3" and rows["groups dropped: void"] == "1"
        for late, count in LEDGER["staleness"].items():
            script = "[...document.querySelectorAll('[aria-label^=Staleness] tr')].map((row) => row.innerText.trim())"
            assert [late, str(count)] in [row.split() for row in await page.value(script)]
        told = "\n".join(charts)
        for start in (
            "Slots by state over",
            "Episodes per second over",
            "Episodes under way over",
            "Largest staleness over",
        ):
            assert start in told
        assert await page.value("document.querySelector('[role=progressbar]').getAttribute('aria-valuenow')") == "8"
        text = await page.value("document.body.innerText + document.body.innerHTML")
        for slip in ("NaN", "undefined", "[object", "Infinity"):
            assert slip not in text

    in_browser(act)


def test_text_that_somebody_made_up_stays_text(in_browser):
    async def act(page, process):
        assert await page.value("document.body.dataset.owned") is None
        assert await page.value("document.querySelectorAll('#app img, #app script').length") == 0
        text = await page.value("document.body.textContent")
        assert text.count(ATTACK) >= 5 and not set("\x1b\u202e") & set(text) and "\\u202e" in text
        assert ATTACK in await page.value("document.title")

    in_browser(act)


def test_the_page_follows_the_run_until_it_ends_and_says_when_nobody_answers(diary, in_browser):
    async def act(page, process):
        state = "document.querySelector('[role=status]').textContent"
        assert await page.value(state) == "running"
        ledger = {**LEDGER, "slots": {"pending": 0, "running": 4, "valid": 11, "void": 1}}
        diary.now_s = time.time()
        diary.status(ledger=ledger)
        await page.until("document.querySelector('.tile .value').textContent === '4'")
        assert "9 running" not in (await page.value(CHARTS))[0] and "4 running" in (await page.value(CHARTS))[0]
        diary.finish()
        await page.until(f"{state} === 'finished'")
        process.send_signal(signal.SIGTERM)
        await page.until(f"{state} === 'the server does not answer'")
        assert process.wait(10) == 0
        assert await page.value(TILES), "what was known stays"
        page.complaints.clear()  # the requests that nobody answered

    in_browser(act)


def test_what_does_not_change_is_not_drawn_again_so_that_a_selection_stays(diary, in_browser):
    diary.finish()

    async def act(page, process):
        await page.value("document.querySelector('.tile').dataset.mine = 'yes'")
        await asyncio.sleep(2.5)
        assert await page.value("document.querySelector('.tile').dataset.mine") == "yes"

    in_browser(act)


@pytest.mark.parametrize("size", [PHONE, (320, 640), DESK])
def test_nothing_sticks_out_of_a_small_screen(in_browser, size):
    async def act(page, process):
        assert await page.value("document.documentElement.scrollWidth") <= size[0]
        outside = """[...document.querySelectorAll('main *')].filter((node) => !node.closest('.scroll')
            && node.getBoundingClientRect().right > innerWidth + 0.5).map((node) => node.outerHTML.slice(0, 80))"""
        assert await page.value(outside) == []

    in_browser(act, size)


def test_a_folder_of_before_there_was_a_status_and_an_empty_one_have_a_page(diary, in_browser):
    (diary.folder / "status.json").unlink()

    async def act(page, process):
        assert "Slots running" not in await page.value(TILES)
        (diary.folder / "config.json").touch()
        (diary.folder / "events.jsonl").write_text("")
        await page.until("document.querySelector('[role=status]').textContent === 'starting'")

    in_browser(act)


CONTRAST = """(() => {
  const part = (value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = (color) => {
    const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map((value) => part(value / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    const found = getComputedStyle(node).backgroundColor;
    return /, 0\\)$/.test(found) ? behind(node.parentElement) : found;
  };
  const bad = [];
  for (const node of document.querySelectorAll('#app *')) {
    if (![...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim())) continue;
    const style = getComputedStyle(node), ink = light(node.closest('svg') ? style.fill : style.color);
    const paper = light(behind(node)), ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (ratio < 4.5) bad.push([node.className, node.textContent.slice(0, 30), ratio]);
  }
  return bad;
})()"""
"""Texts whose contrast is below what WCAG asks for (level AA)."""


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_can_be_read_in_light_and_in_dark(in_browser, dark):
    async def act(page, process):
        paper = await page.value("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(17, 20, 26)") == dark
        assert await page.value(CONTRAST) == []
        await page.value("document.querySelector('header button').click()")
        assert (await page.value("getComputedStyle(document.body).backgroundColor") == "rgb(17, 20, 26)") != dark
        assert await page.value(CONTRAST) == []

    in_browser(act, dark=dark)


def test_a_picture_of_the_page_is_not_a_blank(in_browser):
    async def act(page, process):
        shot = await page.picture()
        assert shot.startswith(b"\x89PNG") and len(shot) > 40_000

    in_browser(act)


# --- the server ---------------------------------------------------------------------------------------------------


def asked(url, method="GET", **headers):
    async def main():
        async with aiohttp.ClientSession() as session, session.request(method, url, headers=headers) as reply:
            return reply.status, await reply.text(), reply.headers

    return asyncio.run(main())


def test_only_loopbacks_own_names_are_answered_and_nothing_can_be_changed(diary):
    with top(diary.folder) as (url, _):
        port = url.rpartition(":")[2]
        assert asked(url)[0] == asked(url, Host=f"localhost:{port}")[0] == 200
        for name in ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", "", "127.0.0.2"):
            status, text, _ = asked(f"{url}/figures", Host=name)
            assert status in (400, 403) and "quickstart" not in text and ATTACK not in text, name
        for method in ("POST", "PUT", "DELETE"):
            assert asked(f"{url}/figures", method)[0] == 405
        for path in ("/../etc/passwd", "/status.json", "/events.jsonl", "/%2e%2e/pyproject.toml"):
            assert asked(f"{url}{path}")[0] == 404


def test_pages_of_other_origins_cannot_read_it_and_its_own_policy_is_strict(diary):
    with top(diary.folder) as (url, _):
        for path in ("/", "/top.js", "/figures", "/missing"):
            headers = asked(f"{url}{path}", Origin="https://evil.example")[2]
            assert "Access-Control-Allow-Origin" not in headers
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
            assert headers["X-Content-Type-Options"] == "nosniff"


def test_figures_that_could_not_be_renewed_are_not_shown_as_new(diary, monkeypatch):
    watch = Watch(diary.folder)
    site = Site(watch, watch.look())
    monkeypatch.setattr("composer_plugin_top.site.EVERY_S", 0.01)
    monkeypatch.setattr(Watch, "look", lambda self: 1 / 0)

    async def main():
        looking = asyncio.create_task(site.keep_looking())
        async with asyncio.timeout(30):
            while site.picture["state"]["word"] != "unknown":
                await asyncio.sleep(0.01)
        looking.cancel()

    asyncio.run(main())
    assert site.picture["outcomes"] and "ZeroDivisionError" in site.picture["problems"][0]


def test_the_page_asks_no_other_host():
    for name in ("top.html", "top.js", "top.css"):
        text = files("composer_plugin_top").joinpath("assets", name).read_text(encoding="utf-8")
        assert set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`]*", text)) <= {"http://www.w3.org/2000/svg"}


def test_light_and_dark_have_the_same_colors_defined():
    text = files("composer_plugin_top").joinpath("assets", "top.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root[^{]*\{([^}]*)\}", text)
    names = [set(re.findall(r"--[a-z]+(?=:)", block)) for block in blocks]
    assert len(names) == 3 and names[0] == names[1] == names[2]
    assert blocks[1].split() == blocks[2].split(), "dark by the system and dark by the button are one"


def test_a_port_that_is_taken_is_refused_with_the_fix(diary):
    with top(diary.folder) as (url, _):
        port = url.rpartition(":")[2]
        done = subprocess.run(
            [*TOP, diary.folder, "--web", port], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 2 and "0 for any that is free" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once_and_in_order(diary, number):
    with top(diary.folder) as (_, process):
        process.send_signal(number)
        assert process.wait(10) == 0 and process.stdout.read() == ""
