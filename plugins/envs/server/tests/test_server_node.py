"""Owners, leases, forks, pools and reconciling, in a node in memory; and what a page and Prometheus are told."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from inprocess import SPEC, TOKEN, TREE, client, create, room, served, until
from prometheus_client.parser import text_string_to_metric_families

from composer_core.errors import (
    NoCapacity,
    PathError,
    PrepareError,
    QuotaError,
    SandboxError,
    SandboxGone,
    SandboxUnreachable,
    TemplateMissing,
    Unsupported,
)
from composer_core.protocols import Created, Describes, ExecRequest, Failed, TemplateRef, TemplateSpec
from composer_core.sandbox import Sandboxes
from composer_core.trees import Tree
from composer_core.types import Limits, TaskView
from composer_plugin_server.config import RemoteConfig
from composer_plugin_server.metrics import FIGURES
from composer_plugin_server.remote import RemoteProvider
from composer_plugin_server.settings import Pools
from composer_plugin_server.wire import API, KEY_HEADER, LEASE_HEADER
from composer_testing.fakes.sandbox import MemoryProvider


class SlowProvider(MemoryProvider):
    """Creations take as long as `gate` is shut, and are counted."""

    def __init__(self, commands=None) -> None:
        super().__init__({"wait": self._wait, **(commands or {})})
        self.gate = asyncio.Event()
        self.gate.set()
        self.creating = self.most = self.made = 0

    async def _wait(self, files, argv, stdin):
        await self.gate.wait()
        self.made += 1
        return await MemoryProvider().place(SPEC, TREE).exec(ExecRequest(("echo", *argv[1:])))

    async def create(self, source, n=1):
        self.creating += 1
        self.most = max(self.most, self.creating)
        try:
            await self.gate.wait()
            return await super().create(source, n)
        finally:
            self.creating -= 1


# --- owners -------------------------------------------------------------------------------------------------------


def test_one_clients_sandboxes_and_snapshots_are_as_missing_for_another_as_what_never_was(tmp_path, monkeypatch):
    async def main():
        async with served(tmp_path, monkeypatch) as running, client(running) as one, client(running) as other:
            (box,) = await create(one)
            ref = await box.snapshot()
            (own,) = await create(other)
            with pytest.raises(SandboxGone) as known:
                await other.attach(box.id)
            with pytest.raises(SandboxGone) as unknown:
                await other.attach(f"{running.node.name}-0123456789abcdef")
            assert str(known.value).replace(box.id, "") == str(unknown.value).replace(
                f"{running.node.name}-0123456789abcdef", ""
            )
            stolen = type(own)(own._connection, box.id)
            for call in (
                stolen.exec(ExecRequest(("true",))), stolen.read("a.txt", 10), stolen.write("a.txt", b"x"),
                stolen.list(""), stolen.fork(1), stolen.snapshot(), stolen.changes(10), stolen.renew(1.0),
            ):  # fmt: skip
                with pytest.raises(SandboxGone):
                    await call
            await stolen.destroy()
            with pytest.raises(SandboxError):
                await other.create(ref)
            assert await box.read("a.txt", 10) == b"one\n", "nothing of that did anything"

    asyncio.run(main())


def test_another_process_joins_a_lease_and_leaves_it_standing(tmp_path, monkeypatch):
    async def main():
        async with served(tmp_path, monkeypatch) as running, client(running) as one:
            (box,) = await create(one)
            async with client(running, lease=one.leases[running.url]) as worker:
                attached = await worker.attach(box.id)
                await attached.write("from", b"worker")
            assert await box.read("from", 10) == b"worker"

    asyncio.run(main())


def test_a_silent_client_loses_everything_and_one_that_is_heard_of_nothing(tmp_path, monkeypatch):
    async def main():
        async with served(tmp_path, monkeypatch) as running, client(running, lease_s=1.0) as kept:
            (box,) = await create(kept)
            silent = RemoteProvider(RemoteConfig(urls=(running.url,), lease_s=1.0), TOKEN)
            await create(silent, 3)
            silent._nodes[0]._beating.cancel()
            await until(lambda: running.node.figures.counts["leases_expired"])
            await until(lambda: running.node.gate.live == 1)
            assert await box.read("a.txt", 10) == b"one\n"
            await silent.close()

    asyncio.run(main())


def captures(behind: MemoryProvider) -> list[str]:
    return [name for name in behind._states if name.startswith("snapshot")]


def test_a_snapshot_is_freed_where_it_lies_by_its_owner_alone_or_with_its_lease(tmp_path, monkeypatch):
    async def main():
        behind = MemoryProvider()
        async with served(tmp_path, monkeypatch, behind) as running, client(running) as one, client(running) as other:
            (box,) = await create(one)
            first, _ = await box.snapshot(), await box.snapshot()
            await other.release(first)
            assert len(captures(behind)) == 2
            for _ in range(2):
                await one.release(first)
            assert len(captures(behind)) == 1 and running.node.figures.done["release"] == 1
            with pytest.raises(TemplateMissing):
                await one.create(first)
            await one.close()
            assert not captures(behind) and not behind.live

    asyncio.run(main())


@pytest.mark.parametrize("gone", ["lease", "caller"])
def test_a_snapshot_that_nobody_can_hear_of_any_more_is_freed(tmp_path, monkeypatch, gone: str):
    async def main():
        behind, captured, told = MemoryProvider(), asyncio.Event(), asyncio.Event()
        async with served(tmp_path, monkeypatch, behind) as running, client(running) as provider:
            (box,) = await create(provider)
            lease = next(iter(running.node.leases))
            backend = lease.sandboxes[box.id].backend

            async def snapshot():
                ref = behind.capture(backend)
                captured.set()
                await told.wait()
                return ref

            backend.snapshot = snapshot
            asking = asyncio.ensure_future(box.snapshot())
            await captured.wait()
            if gone == "lease":
                await running.node.end(lease)
                told.set()
                with pytest.raises(SandboxGone):
                    await asking
            else:
                told.set()
                await asyncio.sleep(0)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            await until(lambda: not captures(behind))

    asyncio.run(main())


def test_what_a_node_says_of_its_machine_is_passed_on_with_where_it_is(tmp_path, monkeypatch):
    class Telling(MemoryProvider):
        def describe(self) -> str:
            return "a dictionary in memory"

    async def main():
        async with served(tmp_path, monkeypatch, Telling()) as running, client(running, needs=()) as provider:
            assert isinstance(provider, Describes)
            await provider.probe()
            assert provider.describe() == f"fakes/memory at {running.url}: a dictionary in memory"

    asyncio.run(main())


def test_closing_a_provider_destroys_what_it_made_and_nothing_else(tmp_path, monkeypatch):
    async def main():
        behind = MemoryProvider()
        async with served(tmp_path, monkeypatch, behind) as running, client(running) as kept:
            (box,) = await create(kept)
            async with client(running) as other:
                await create(other, 5)
                assert len(behind.live) == 6
            assert len(behind.live) == 1
            await box.read("a.txt", 10)
        assert not behind.live

    asyncio.run(main())


# --- creations ----------------------------------------------------------------------------------------------------


def test_starts_are_capped_and_all_who_wait_are_served_in_order(tmp_path, monkeypatch):
    async def main():
        behind = SlowProvider()
        limits = room(sandboxes=50, starts=3)
        async with served(tmp_path, monkeypatch, behind, admission=limits) as running, client(running) as provider:
            template = await provider.prepare(SPEC, TREE)
            behind.gate.clear()
            tasks = [asyncio.ensure_future(provider.create(template)) for _ in range(20)]
            await until(lambda: (running.node.gate.waiting, behind.creating) == (17, 3))
            assert running.node.gate.oldest_s > 0
            behind.gate.set()
            made = [child for found in await asyncio.gather(*tasks) for child in found]
            assert all(isinstance(child, Created) for child in made) and behind.most == 3
            assert running.node.figures.percentiles()["wait"]["count"] == 20

    asyncio.run(main())


def test_a_creation_that_its_caller_gave_up_leaves_no_sandbox_and_no_room_taken(tmp_path, monkeypatch):
    async def main():
        behind = SlowProvider()
        async with served(tmp_path, monkeypatch, behind) as running, client(running) as provider:
            template = await provider.prepare(SPEC, TREE)
            behind.gate.clear()
            tasks = [asyncio.ensure_future(provider.create(template)) for _ in range(8)]
            await until(lambda: behind.creating)
            await asyncio.sleep(0.1)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await until(lambda: not running.node.gate.waiting)
            behind.gate.set()
            await until(lambda: not running.node.gate.live and not running.node.gate.starting)
            assert not behind.live

    asyncio.run(main())


def test_no_room_is_told_with_a_time_to_come_back_and_core_does_so(tmp_path, monkeypatch):
    async def main():
        limits = room(sandboxes=1)
        async with served(tmp_path, monkeypatch, admission=limits) as running, client(running, wait_s=0.0) as provider:
            (box,) = await create(provider)
            with pytest.raises(NoCapacity) as refused:
                await create(provider)
            assert refused.value.fields["retry_after_s"] >= 1
            sandboxes = Sandboxes(provider, "server/remote", lambda ref: TREE)
            again = asyncio.ensure_future(sandboxes.create(TaskView("t", "do", TREE.ref, Limits())))
            await until(lambda: running.node.gate.refused["sandboxes"] == 2)
            await box.destroy()
            assert (await again).id != box.id

    asyncio.run(main())


def test_what_does_not_fit_an_empty_node_is_refused_at_once(tmp_path, monkeypatch):
    async def main():
        limits = room(memory_bytes=8 << 20)
        async with served(tmp_path, monkeypatch, admission=limits) as running, client(running) as provider:
            with pytest.raises(NoCapacity, match="too large"):
                await create(provider)

    asyncio.run(main())


def test_a_fork_is_counted_and_children_beyond_the_node_say_why(tmp_path, monkeypatch):
    async def main():
        limits = room(sandboxes=6)
        async with served(tmp_path, monkeypatch, admission=limits) as running, client(running, wait_s=0.2) as provider:
            (box,) = await create(provider)
            await box.write("a.txt", b"forked")
            children = await box.fork(3)
            assert [await child.backend.read("a.txt", 10) for child in children] == [b"forked"] * 3
            assert running.node.gate.live == 4
            full = await box.fork(3)
            assert all(isinstance(child, Failed) and child.retryable for child in full)
            for child in children:
                await child.backend.destroy()
            await box.destroy()
            assert running.node.gate.live == 0

    asyncio.run(main())


def test_one_creation_that_fails_does_not_take_its_siblings_along(tmp_path, monkeypatch):
    async def main():
        behind = MemoryProvider()
        async with served(tmp_path, monkeypatch, behind) as running, client(running) as provider:
            template = await provider.prepare(SPEC, TREE)
            behind.failures = 1
            found = await provider.create(template, 4)
            assert [type(child) for child in found].count(Failed) == 1 and len(behind.live) == 3
            assert running.node.gate.live == 3

    asyncio.run(main())


def test_errors_arrive_as_what_they_were_and_name_the_provider(tmp_path, monkeypatch):
    async def main():
        behind = MemoryProvider()
        async with served(tmp_path, monkeypatch, behind) as running, client(running) as provider:
            with pytest.raises(PrepareError, match="not scripted: nothing"):
                await provider.prepare(TemplateSpec(TREE.ref, ("nothing",)), TREE)
            behind.create = None
            with pytest.raises(Exception, match=r"fakes/memory .*raised TypeError"):
                await create(provider)
            del behind.create  # the instance's, so that the class's is found again
            assert await create(provider) and running.node.gate.live == 1

    asyncio.run(main())


def test_a_template_that_the_provider_lost_is_prepared_again(tmp_path, monkeypatch):
    async def main():
        behind = MemoryProvider()
        async with served(tmp_path, monkeypatch, behind) as running, client(running) as provider:
            template = await provider.prepare(SPEC, TREE)
            behind._states.clear()
            with pytest.raises(SandboxError):
                await provider.create(TemplateRef("nobody-made-this"))
            (made,) = await provider.create(template)
            assert isinstance(made, Created)

    asyncio.run(main())


# --- commands -----------------------------------------------------------------------------------------------------


def test_a_command_whose_answer_was_lost_is_not_run_twice(tmp_path, monkeypatch):
    """The same key over two connections, the first of which is cut while the command runs."""

    async def main():
        behind = SlowProvider()
        async with served(tmp_path, monkeypatch, behind) as running, client(running) as provider:
            (box,) = await create(provider)
            behind.gate.clear()
            url = f"{running.url}/{API}/sandboxes/{box.id}/exec"
            lease = next(iter(provider.leases.values()))
            headers = {"Authorization": f"Bearer {TOKEN}", LEASE_HEADER: lease, KEY_HEADER: "one-key-of-a-test"}
            body = {"argv": ["wait", "done"]}
            async with aiohttp.ClientSession(headers=headers) as session:
                with pytest.raises(TimeoutError):
                    await session.post(url, json=body, timeout=aiohttp.ClientTimeout(total=0.2))
                again = asyncio.ensure_future(session.post(url, json=body))
                await asyncio.sleep(0.1)
                behind.gate.set()
                assert (await (await again).json())["exit_code"] == 0
                assert (await (await session.post(url, json=body)).json())["exit_code"] == 0
            assert behind.made == 1

    asyncio.run(main())


def test_a_server_that_is_not_there_is_unreachable_and_says_where(monkeypatch):
    monkeypatch.setattr("composer_plugin_server.connection.RETRY_S", 0.3)

    async def main():
        provider = RemoteProvider(RemoteConfig(urls=("http://127.0.0.1:9",)), TOKEN)
        with pytest.raises(SandboxUnreachable, match=r"127\.0\.0\.1:9") as lost:
            await provider.prepare(SPEC, TREE)
        assert lost.value.retryable
        await provider.close()

    asyncio.run(main())


def test_what_a_backend_lacks_is_unsupported_also_for_a_client_that_asks_nevertheless(tmp_path, monkeypatch):
    async def main():
        async with served(tmp_path, monkeypatch) as running, client(running) as provider:
            (box,) = await create(provider)
            assert not hasattr(box, "pause")
            with pytest.raises(Unsupported, match="pauses"):
                await box._connection.ask("POST", f"/sandboxes/{box.id}/pause", dict, keyed=True)

    asyncio.run(main())


# --- pools --------------------------------------------------------------------------------------------------------


def test_a_group_finds_its_sandboxes_ready(tmp_path, monkeypatch):
    async def main():
        behind = MemoryProvider()
        async with served(tmp_path, monkeypatch, behind) as running, client(running, group=4) as provider:
            template = await provider.prepare(SPEC, TREE)
            await until(lambda: running.node.pools.warm == 4)
            made = [child for _ in range(4) for child in await provider.create(template)]
            assert (running.node.pools.hits, running.node.pools.misses) == (4, 0)
            await made[0].backend.write("a.txt", b"mine")
            await made[0].backend.destroy()
            await until(lambda: running.node.pools.warm == 4)
            (fresh,) = await provider.create(template)
            assert await fresh.backend.read("a.txt", 10) == b"one\n", "a used one never comes back"
            assert len({child.backend.id for child in (*made, fresh)}) == 5

    asyncio.run(main())


def test_a_pool_gives_way_to_whoever_lacks_room(tmp_path, monkeypatch):
    async def main():
        limits = room(sandboxes=5)
        async with served(tmp_path, monkeypatch, admission=limits) as running, client(running, group=4) as provider:
            await provider.prepare(SPEC, TREE)
            await until(lambda: running.node.pools.warm == 4)
            other = Tree.of({"b.txt": "two\n"})
            async with client(running) as second:
                template = await second.prepare(TemplateSpec(other.ref), other)
                made = [child for _ in range(4) for child in await second.create(template)]
                assert all(isinstance(child, Created) for child in made)
                assert running.node.gate.live <= 5 and running.node.pools.warm <= 1

    asyncio.run(main())


def test_pools_that_nobody_uses_are_emptied_and_the_oldest_template_goes_first(tmp_path, monkeypatch):
    async def main():
        pools = Pools(templates=2, most=2, idle_s=0.5)
        async with served(tmp_path, monkeypatch, pools=pools) as running, client(running, group=9) as provider:
            for number in range(3):
                tree = Tree.of({"n": str(number)})
                await provider.prepare(TemplateSpec(tree.ref), tree)
            assert len(running.node.pools._pools) == 2
            await until(lambda: not running.node.pools._pools and not running.node.gate.live)

    asyncio.run(main())


# --- between requests ---------------------------------------------------------------------------------------------


def test_what_vanished_behind_the_servers_back_is_taken_off(tmp_path, monkeypatch):
    async def main():
        behind = MemoryProvider()
        tables = {"server": {"reconcile_s": 0.1}}
        async with served(tmp_path, monkeypatch, behind, **tables) as running, client(running) as provider:
            gone, kept = await create(provider, 2)
            strangers = behind.place(SPEC, TREE)
            lease = next(iter(running.node.leases))
            del behind.live[lease.sandboxes[gone.id].backend.id]
            await until(lambda: running.node.figures.counts["vanished"] == 1)
            assert running.node.gate.live == 1
            with pytest.raises(SandboxGone):
                await gone.read("a.txt", 10)
            assert await kept.read("a.txt", 10) == b"one\n"
            assert strangers.id in behind.live, "what the server does not own is none of its business"

    asyncio.run(main())


def test_a_warm_one_that_vanished_is_replaced_and_given_to_nobody(tmp_path, monkeypatch):
    async def main():
        behind = MemoryProvider()
        tables = {"server": {"reconcile_s": 0.1}}
        async with served(tmp_path, monkeypatch, behind, **tables) as running, client(running, group=3) as provider:
            template = await provider.prepare(SPEC, TREE)
            await until(lambda: running.node.pools.warm == 3)
            gone = running.node.pools.members()[0]
            del behind.live[gone.backend.id]
            await until(lambda: running.node.figures.counts["vanished"] == 1)
            await until(lambda: running.node.pools.warm == 3)
            assert gone not in running.node.pools.members() and running.node.gate.live == 3
            (made,) = await provider.create(template)
            assert await made.backend.read("a.txt", 10) == b"one\n"

    asyncio.run(main())


def test_a_provider_that_does_not_answer_keeps_no_lease_from_ending(tmp_path, monkeypatch):
    async def main():
        behind = MemoryProvider()
        tables = {"server": {"reconcile_s": 0.1}}
        async with served(tmp_path, monkeypatch, behind, **tables) as running:
            silent = RemoteProvider(RemoteConfig(urls=(running.url,), lease_s=1.0), TOKEN)
            await create(silent)
            behind.attach = lambda id: asyncio.Event().wait()
            silent._nodes[0]._beating.cancel()
            await until(lambda: not behind.live)
            await silent.close()

    asyncio.run(main())


def test_a_client_that_waits_in_line_with_every_connection_is_still_heard_of(tmp_path, monkeypatch):
    async def main():
        behind = SlowProvider()
        async with (
            served(tmp_path, monkeypatch, behind) as running,
            client(running, lease_s=1.0, starts=1) as provider,
        ):
            template = await provider.prepare(SPEC, TREE)
            (box,) = await create(provider)
            behind.gate.clear()
            tasks = [asyncio.ensure_future(provider.create(template)) for _ in range(3)]
            await asyncio.sleep(2.0)
            assert await box.read("a.txt", 10) == b"one\n", "nor do calls wait behind creations"
            behind.gate.set()
            assert all(isinstance(child, Created) for found in await asyncio.gather(*tasks) for child in found)
            assert not running.node.figures.counts["leases_expired"]

    asyncio.run(main())


def test_a_sandbox_that_cannot_be_destroyed_keeps_its_room_until_it_can(tmp_path, monkeypatch):
    async def main():
        behind = MemoryProvider()
        tables = {"server": {"reconcile_s": 0.1}}
        async with served(tmp_path, monkeypatch, behind, **tables) as running, client(running) as provider:
            (box,) = await create(provider)
            (stuck,) = behind.live.values()
            broken = asyncio.get_running_loop().time() + 0.5

            async def destroy():
                if asyncio.get_running_loop().time() < broken:
                    raise RuntimeError("busy")
                del behind.live[stuck.id]

            stuck.destroy = destroy
            with pytest.raises(Exception, match="busy"):
                await box.destroy()
            assert running.node.gate.live == 1 and running.node.figures.counts["stuck"]
            await until(lambda: not running.node.gate.live)
            assert not behind.live

    asyncio.run(main())


# --- several nodes ------------------------------------------------------------------------------------------------


def test_two_nodes_share_creations_and_a_full_one_is_passed_over(tmp_path, monkeypatch):
    async def main():
        limits = room(sandboxes=3)
        first, second = MemoryProvider(), MemoryProvider()
        async with (
            served(tmp_path / "a", monkeypatch, first, admission=limits) as one,
            served(tmp_path / "b", monkeypatch, second, admission=limits) as two,
        ):
            provider = RemoteProvider(RemoteConfig(urls=(one.url, two.url), wait_s=0.2), TOKEN)
            try:
                template = await provider.prepare(SPEC, TREE)
                boxes = [child.backend for _ in range(6) for child in await provider.create(template)]
                assert (len(first.live), len(second.live)) == (3, 3)
                with pytest.raises(NoCapacity):
                    await provider.create(template)
                for box in boxes:
                    assert await (await provider.attach(box.id)).read("a.txt", 10) == b"one\n"
                ref = await boxes[0].snapshot()
                await boxes[0].destroy()
                (again,) = await provider.create(ref)
                assert again.backend.id.partition("-")[0] == boxes[0].id.partition("-")[0], "where its files are"
                with pytest.raises(SandboxGone):
                    await provider.attach("elsewhere-0123456789abcdef")
            finally:
                await provider.close()
            assert not first.live and not second.live

    asyncio.run(main())


# --- figures ------------------------------------------------------------------------------------------------------


def test_prometheus_is_told_what_the_page_shows(tmp_path, monkeypatch):
    async def main():
        async with served(tmp_path, monkeypatch) as running, client(running) as provider:
            (box,) = await create(provider)
            await box.exec(ExecRequest(("true",)))
            await box.fork(2)
            for call in (box.list("nothing/here"), box.read("a.txt", 1)):
                with pytest.raises((PathError, QuotaError)):
                    await call
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
                text = await (await session.get(f"{running.url}/metrics")).text()
                page = await (await session.get(f"{running.url}/v1/fleet")).json()
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        (node,) = page["nodes"]
        assert node["failed"] == {}, "a path that is not there is an answer"
        assert {name.removesuffix("_total") for name, *_ in samples} <= {
            f"composer_envd_{one.name}{end}" for one in FIGURES for end in ("", "_count", "_sum")
        }
        assert samples["composer_envd_sandboxes", "idle"] == node["states"]["idle"] == 3
        assert samples["composer_envd_live",] == node["room"]["live"] == 3
        for act in ("create", "exec", "fork"):
            assert samples["composer_envd_acts_total", act] == node["done"][act] == 1
            assert samples["composer_envd_latency_seconds", act, "0.5"] * 1e3 == pytest.approx(
                node["latencies_ms"][act]["p50"]
            )

    asyncio.run(main())


def test_a_page_shows_other_nodes_and_those_that_do_not_answer(tmp_path, monkeypatch):
    async def main():
        async with served(tmp_path / "a", monkeypatch) as other:
            nodes = {"server": {"nodes": (other.url, "http://127.0.0.1:9")}}
            async with (
                served(tmp_path / "b", monkeypatch, **nodes) as running,
                aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session,
            ):
                page = await (await session.get(f"{running.url}/v1/fleet")).json()
        names = [node["node"] for node in page["nodes"]]
        assert names == [running.node.name, other.node.name, "http://127.0.0.1:9"]
        assert ["missing" in node for node in page["nodes"]] == [False, False, True]

    asyncio.run(main())
