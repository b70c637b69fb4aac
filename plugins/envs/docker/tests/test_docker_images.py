"""Where root file systems come from, and what is refused."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from containers import SPEC, TREE, act, create, sh

from composer_core import RunView
from composer_core.errors import ConfigError, PrepareError
from composer_core.protocols import ExecRequest, TemplateSpec
from composer_plugin_docker import interpreter, programs
from composer_plugin_docker.config import DockerConfig
from composer_plugin_docker.engine import Engine
from composer_plugin_docker.plugin import composer_check
from composer_plugin_docker.provider import DockerProvider

BARE = TemplateSpec(TREE.ref)


def rootfs(folder: Path, *names: str) -> Path:
    """A root file system of a few programs, none of them Python."""
    for path in programs.closure([place for name in names if (place := shutil.which(name, path=programs.SYSTEM))]):
        target = folder / path.lstrip("/")
        if os.path.islink(path):
            target.symlink_to(os.readlink(path))
        elif os.path.isdir(path):
            target.mkdir(parents=True, exist_ok=True)
        else:
            shutil.copy2(path, target)
    return folder


def test_a_prepared_folder_is_a_base_and_the_agent_needs_nothing_of_it(tmp_path: Path) -> None:
    async def action(sandbox, provider):
        assert (await sandbox.exec(ExecRequest(("cat", "a.txt")))).stdout == b"one\n"
        missing = await sandbox.exec(ExecRequest(("sh", "-c", "exit 3")))
        assert (missing.exit_code, await sandbox.read("pkg/b.txt", 10)) == (127, b"two\n")

    act(action, BARE, DockerConfig(rootfs=str(rootfs(tmp_path, "cat"))))


def test_an_image_is_used_by_its_reference_with_its_own_environment() -> None:
    async def named(reference: str, environment: str) -> None:
        provider = DockerProvider()
        try:
            await create(provider, BARE)
            api, base = provider.engine.api, await provider._open.images._base(())
            made = await provider.engine.call(api.create_container, base, ["-"], environment=[environment])
            name, _, tag = reference.partition(":")
            await provider.engine.call(api.commit, made["Id"], name, tag)
            await provider.engine.remove_container(made["Id"])
        finally:
            await provider.close()

    asyncio.run(named("mine:1", "FROM_IMAGE=yes"))

    async def action(sandbox, provider):
        assert (await sh(sandbox, "echo $FROM_IMAGE $GIVEN; cat a.txt")).stdout == b"yes\none\n"

    act(action, BARE, DockerConfig(image="mine:1"))


def test_folders_of_this_machine_come_along_where_they_are() -> None:
    folder = next(path for path in sorted(Path("/usr/share").iterdir()) if path.is_dir() and any(path.iterdir()))

    async def action(sandbox, provider):
        listed = (await sh(sandbox, f"ls -A {folder}")).stdout.decode().split()
        assert sorted(listed) == sorted(path.name for path in folder.iterdir())

    act(action, BARE, DockerConfig(folders=(str(folder),)))


def test_the_base_of_this_machine_holds_no_installed_package() -> None:
    async def action(sandbox, provider):
        return (await sh(sandbox, "find / -name '*-packages' 2>/dev/null; python3 -c 'import composer_core'")).stderr

    assert b"ModuleNotFoundError" in act(action)


@pytest.mark.parametrize(
    "config, said",
    [
        (DockerConfig(image="nobody/has-this:1"), "no such image"),
        (DockerConfig(rootfs="/no/such/folder"), "no such folder"),
        (DockerConfig(folders=("/no/such/folder",)), "no such folder"),
        (DockerConfig(image="a", rootfs="/b"), "several base images"),
        (DockerConfig(engine="unix:///no/such.sock"), "no container engine answers"),
    ],
)
def test_a_base_that_cannot_be_had_is_an_error_that_says_so(config: DockerConfig, said: str) -> None:
    async def main() -> None:
        provider = DockerProvider(config)
        try:
            await provider.prepare(SPEC, TREE)
        finally:
            await provider.close()

    with pytest.raises((ConfigError, PrepareError), match=said):
        asyncio.run(main())


def test_a_command_that_an_image_lacks_is_refused_when_it_is_prepared(tmp_path: Path) -> None:
    async def main() -> None:
        provider = DockerProvider(DockerConfig(rootfs=str(rootfs(tmp_path, "cat"))))
        try:
            await provider.prepare(TemplateSpec(TREE.ref, ("cat", "rg")), TREE)
        finally:
            await provider.close()

    with pytest.raises(PrepareError, match="no commands rg"):
        asyncio.run(main())


def test_equal_content_is_made_into_an_image_once() -> None:
    async def main() -> int:
        provider, other = DockerProvider(), SPEC.__class__(TREE.ref, ("python3",), processes=30)
        made: list[str] = []
        add_layer = Engine.add_layer

        async def counted(engine, image, archive, name, labels):
            made.append(name)
            return await add_layer(engine, image, archive, name, labels)

        try:
            await create(provider)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(Engine, "add_layer", counted)
                await asyncio.gather(*(provider.prepare(spec, TREE) for spec in (SPEC, other, other)))
            return len(made)
        finally:
            await provider.close()

    assert asyncio.run(main()) == 0  # the same workspace under other limits is the same image


def test_a_run_that_names_two_bases_is_refused() -> None:
    def problems(config: DockerConfig) -> list[str]:
        return [problem.where for problem in composer_check(RunView(None, {"sandboxes": (("docker/docker", config),)}))]

    assert problems(DockerConfig(image="a", folders=("/usr",))) == ["sandbox.folders"]
    assert problems(DockerConfig()) == problems(DockerConfig(image="a")) == []


def test_the_agent_is_named_by_its_source_and_its_interpreter(monkeypatch) -> None:
    before = interpreter.identity()
    assert before == interpreter.identity()
    monkeypatch.setattr("sys.version", "another")
    assert before != interpreter.identity()
