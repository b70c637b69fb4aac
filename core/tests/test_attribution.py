"""A plugin that breaks is named with its distribution and version, wherever that happens.

The plugin `mine` is a real distribution on the path: metadata, entry point, hook module. Its components are the fakes'
with one method broken, so everything around them works.
"""

import asyncio
import gc
import json
import pickle
import shutil
import subprocess
import sys
import threading
import warnings
from importlib import invalidate_caches
from pathlib import Path

import pytest

import composer_core
from composer_core.assembly import Assembly
from composer_core.checking import problems_of
from composer_core.cli import main
from composer_core.commands.train import train
from composer_core.config import load
from composer_core.credit import CreditRule, episode_advantages
from composer_core.edge import Edge
from composer_core.errors import ConfigError, PluginError, PluginFault, SandboxError, boundary, record_owner, who
from composer_core.events import StageEnded
from composer_core.hookspecs import ProcessView
from composer_core.plugins import Candidate, Plugins, load_manifest, select
from composer_core.rundir import RunDir
from composer_core.tracking import Trackers
from composer_core.types import GroupRewards

FAKES = Path(__file__).resolve().parents[2] / "examples/fakes/run.toml"
SHORT = ("stages.rl.steps=1", "stages.rl.evaluate_every=0", "evaluations=[]")
WHOSE = "composer-plugin-mine 0.3"
HEAD = "from composer_core import *\nCOMPOSER_API = 1\n"
SPOILED = """
def spoiled(factory, method, later=True):
    def build(config, build):
        made = factory(config, build)
        def now(*args, **kwargs):
            raise ZeroDivisionError(f"in {method}")
        async def soon(*args, **kwargs):
            raise ZeroDivisionError(f"in {method}")
        setattr(made, method, soon if later else now)
        return made
    return build
"""
COMPONENTS = {
    "tasks": "TaskSpec(name='part', factory=spoiled(fakes.Sums, 'tasks', False), config=fakes.TasksConfig)",
    "models": "ModelSpec(name='part', tokenizer=spoiled(fakes.build_tokenizer, 'encode', False), policy=len)",
    "renderers": (
        "RendererSpec(name='part', factory=spoiled(fakes.build_renderer, 'parse', False),"
        " special_tokens=('<end>', '<turn>'))"
    ),
    "samplers": (
        "SamplerSpec(name='part', factory=spoiled(fakes.build_learner, 'generate'), config=fakes.LearnerConfig,"
        " capabilities=['sampler.logprobs', 'sampler.versions', 'sampler.deterministic'])"
    ),
    "trainers": (
        "TrainerSpec(name='part', factory=spoiled(fakes.SimulatedTrainer, 'step'), stage_config=fakes.SimulatedStage,"
        " config=fakes.SimulatedTrainerConfig, capabilities=['trainer.deterministic'])"
    ),
    "sandboxes": "SandboxSpec(name='part', factory=spoiled(fakes.sandboxes, 'create'))",
    "algorithms": "AlgorithmSpec(name='part', advantage=lambda rewards, config: 1 / 0, objective=len)",
    "executors": (
        "ExecutorSpec(name='part', factory=spoiled(fakes.InProcessExecutor, 'publish'), config=fakes.InProcessConfig)"
    ),
    "contexts": "ContextSpec(name='part', factory=spoiled(fakes.Plain, 'next', False))",
    "stores": ("StoreSpec(name='part', factory=spoiled(fakes.FolderStore, 'put', False), config=fakes.FolderConfig)"),
    "trackers": "TrackerSpec(name='part', factory=spoiled(fakes.JsonlTracker, 'write', False))",
    "rewards": "RewardSpec(name='part', function=lambda patch: 1 / 0, outcome=True)",
    "tools": "ToolSpec(name='write', function=write, effect='write')",
}
"""Kind -> a record of a component that breaks when it is called."""
PARTS = """
class fakes:
    from composer_core.config import InProcessConfig
    from composer_core.context import Plain
    from composer_core.executor import InProcessExecutor
    from composer_core.stores import FolderConfig, FolderStore
    from composer_core.console import ConsoleConfig, ConsoleTracker
    from composer_core.tracking import JsonlTracker
    from composer_testing.fakes.config import LearnerConfig, TasksConfig
    from composer_testing.fakes.learner import build_learner
    from composer_testing.fakes.tasks import Sums, sandboxes
    from composer_testing.fakes.text import build_renderer, build_tokenizer
    from composer_testing.fakes.trainer import SimulatedStage, SimulatedTrainer, SimulatedTrainerConfig

def write(context: ToolContext, path: str, text: str) -> str:
    '''Write a file.'''
    raise ZeroDivisionError("in write")
"""
CHOICES = {
    "tasks": "tasks={use='mine/part', count=12}",
    "models": "model.use='mine/part'",
    "rewards": "rewards=[{use='mine/part'}]",
    "trackers": "trackers=[{use='core/jsonl'}, {use='mine/part'}]",
    "tools": "tools.use=['fakes/read', 'mine/write', 'fakes/done']",
    "sandboxes": "sandbox.use='mine/part'",
}
"""Kind -> how a run chooses that component, where it is not by KIND.use."""


def hook(kind, *records):
    return f"@hookimpl\ndef composer_{kind}():\n" + "".join(f"    yield {record}\n" for record in records)


def choice(kind):
    return CHOICES.get(kind, f"{kind.removesuffix('s')}.use='mine/part'")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put the distribution composer-plugin-mine 0.3 with this hook module onto the path."""

    def put(source, **modules):
        folder = tmp_path / "site"
        info = folder / "composer_plugin_mine-0.3.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: composer-plugin-mine\nVersion: 0.3\n")
        (info / "entry_points.txt").write_text("[composer.plugins]\nmine = mine_hooks\n")
        for name, text in {"mine_hooks": HEAD + source, **modules}.items():
            (folder / f"{name}.py").write_text(text)
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.syspath_prepend(folder)
        invalidate_caches()
        return folder

    yield put
    for name in ("mine_hooks", "mine_parts"):
        sys.modules.pop(name, None)


def loaded():
    return Plugins().load(select(["fakes", "mine"]))


def assembly(tmp_path, *overrides):
    return Assembly(load(FAKES, overrides), loaded().registry, tmp_path)


# --- while loading ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["raise OSError('no driver')", "import no_such_module", "exit(3)", "syntax error"])
def test_at_import(install, source):
    install(source)
    with pytest.raises(PluginError, match="could not be imported") as caught:
        loaded()
    assert f"mine of {WHOSE}" in str(caught.value)


@pytest.mark.parametrize(
    "at", ["    raise ZeroDivisionError('first')\n    yield", "    yield ToolSpec.of(len)\n    1 / 0"]
)
def test_in_a_registration_hook(install, at):
    install(f"@hookimpl\ndef composer_tools():\n{at}\n")
    with pytest.raises(PluginFault, match="ZeroDivisionError") as caught:
        loaded()
    assert f"mine/composer_tools of {WHOSE} (hook)" in str(caught.value)
    assert "(site/mine_hooks.py:" in str(caught.value), "the author's line"
    assert caught.value.exit_code == 2, "nothing has run yet"


def test_the_line_is_the_authors_where_core_is_installed_among_other_packages(tmp_path):
    """Two copies of the code in a folder of that name: what broke is not core's own call."""
    site = tmp_path / "site-packages"
    shutil.copytree(Path(composer_core.__file__).parent, site / "composer_core", ignore=shutil.ignore_patterns("*.pyc"))
    (site / "author.py").write_text("def act():\n    return 1 / 0\n")
    head = "import author\nfrom composer_core import Tree\nfrom composer_core.errors import boundary\n"

    def told(call):
        code = f"{head}with boundary('tools', 'mine/act'): {call}"
        environment, words = {"PYTHONPATH": str(site)}, [sys.executable, "-c", code]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False).stderr

    assert "PluginFault" in told("author.act()") and "(site-packages/author.py:2)" in told("author.act()")
    assert "PluginFault" in told("Tree.of(3)") and "(composer_core/" not in told("Tree.of(3)")


def test_in_the_hook_that_checks_a_run(install):
    install("@hookimpl\ndef composer_check(run):\n    1 / 0\n")
    with pytest.raises(PluginFault) as caught:
        loaded().check(None)
    assert f"mine/composer_check of {WHOSE}" in str(caught.value)


def test_in_the_hook_at_the_start_of_a_process(install, tmp_path):
    install("@hookimpl\ndef composer_process_start(process):\n    raise OSError('no device')\n")
    with pytest.raises(PluginFault, match="OSError: no device") as caught:
        loaded().process_start(ProcessView("worker", 1, "r", tmp_path))
    assert f"mine/composer_process_start of {WHOSE}" in str(caught.value)


def test_a_reward_that_asks_for_what_its_scope_cannot_give(install, tmp_path):
    install(hook("rewards", "RewardSpec(name='part', function=lambda group: 0.0)"))
    with pytest.raises(ConfigError, match="scope 'episode' and asks for group") as caught:
        assembly(tmp_path, "rewards=[{use='mine/part'}]").get("rewards")
    assert f"mine/part of {WHOSE}" in str(caught.value)


# --- while resolving and building ---------------------------------------------------------------------------------

BROKEN_FACTORIES = {
    "mine_parts:nothing": "does not exist",
    "mine_parts:": "'module:attr'",
    "mine_nowhere:part": "No module named 'mine_nowhere'",
    "mine_parts:fails": "ImportError: no library",
    "mine_parts:wrong": "no such disk",
}
FACTORY_FIELDS = {
    "tools": ["function"],
    "rewards": ["function"],
    "algorithms": ["advantage", "objective"],
    "models": ["tokenizer", "policy"],
}
SPEC_OF = {kind: record.partition("(")[0] for kind, record in COMPONENTS.items()}
MORE = {"rewards": "outcome=True, ", "trainers": "capabilities=['trainer.deterministic'], "}
FUNCTIONS = ("tools", "rewards", "algorithms")
UNRESOLVABLE = [
    (kind, factory)
    for kind in sorted(COMPONENTS)
    for factory in sorted(BROKEN_FACTORIES)
    if kind not in FUNCTIONS or factory not in ("mine_parts:fails", "mine_parts:wrong")  # these break when called
]


@pytest.mark.parametrize(("kind", "factory"), UNRESOLVABLE)
def test_while_resolving(install, tmp_path, kind, factory):
    fields = ", ".join(f"{field}={factory!r}" for field in FACTORY_FIELDS.get(kind, ["factory"]))
    name = "write" if kind == "tools" else "part"
    parts = (
        "from composer_core.errors import ConfigError\n"
        "def fails(*arguments):\n    raise ImportError('no library')\n"
        "def wrong(*arguments):\n    raise ConfigError('no such disk')\n"
    )
    record = f"{SPEC_OF[kind]}(name={name!r}, {MORE.get(kind, '')}{fields})"
    install(hook(kind, record), mine_parts=parts)
    built = assembly(tmp_path, choice(kind).replace(", count=12", ""))
    with pytest.raises((PluginError, PluginFault, ConfigError)) as caught:
        built.trackers() if kind == "trackers" else built.get({"models": "tokenizer"}.get(kind, kind))
    assert BROKEN_FACTORIES[factory] in str(caught.value)
    assert f"mine/{name} of {WHOSE}" in str(caught.value)


@pytest.mark.parametrize("kind", sorted(COMPONENTS))
def test_what_an_implementation_lacks_is_found_before_anything_is_built(install, tmp_path, kind):
    fields = ", ".join(f"{field}='mine_parts:part'" for field in FACTORY_FIELDS.get(kind, ["factory"]))
    name = "write" if kind == "tools" else "part"
    install(
        hook(kind, f"{SPEC_OF[kind]}(name={name!r}, {MORE.get(kind, '')}{fields})"),
        mine_parts="import no_such_library.deep\ndef part(): pass\n",
    )
    chosen = assembly(tmp_path, choice(kind).replace(", count=12", ""))
    (problem,) = {found for found in problems_of(chosen, loaded()) if "No module named" in found.message}
    assert f"mine/{name} of {WHOSE}" in problem.message
    assert "No module named 'no_such_library'" in problem.message
    assert problem.fix.startswith("pip install the distribution that brings 'no_such_library'")
    assert problem.where.split("[")[0] == choice(kind).split(".use")[0].split("=")[0]


def test_a_tool_whose_types_no_model_could_be_told_is_found_before_a_run(install, tmp_path):
    install(hook("tools", "ToolSpec(name='write', function='mine_parts:part')"), mine_parts="def part(path): 'Part.'\n")
    (problem,) = problems_of(assembly(tmp_path, CHOICES["tools"]), loaded())
    assert "a tool's parameter has no type" in problem.message and WHOSE in problem.message
    assert problem.fix == "annotate it"


def test_several_implementations_that_cannot_be_imported_are_told_together(install, tmp_path):
    install(
        hook("stores", "StoreSpec(name='part', factory='mine_broken:part')")
        + hook("contexts", "ContextSpec(name='part', factory='mine_parts:nothing')")
        + hook("executors", "ExecutorSpec(name='part', factory='mine_parts:part')"),
        mine_parts="def part(*arguments):\n    raise OSError('only when it is called')\n",
        mine_broken="raise OSError('no driver')\n",
    )
    chosen = assembly(tmp_path, *map(choice, ("stores", "contexts", "executors")))
    told = {one.where: one.message for one in problems_of(chosen, loaded())}
    assert set(told) == {"store", "context"}
    assert "raised OSError: no driver" in told["store"]
    assert "'mine_parts:nothing' does not exist" in told["context"]


# --- in a call ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(set(COMPONENTS) - {"algorithms"}))
def test_in_a_call(install, tmp_path, kind):
    """Either the run ends with an error that names the component, or the faults in its diary do."""
    install(PARTS + SPOILED + hook(kind, COMPONENTS[kind]))
    run = tmp_path / "run"
    try:
        asyncio.run(train(load(FAKES, (*SHORT, choice(kind))), loaded(), RunDir(run)))
        text = ""
    except Exception as error:
        text = str(error)
    events = run / "events.jsonl"  # a run that is refused at its start writes none
    diary = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
    texts = [text, *(fault["error"] for event in diary for fault in faults_of(event))]
    name = "write" if kind == "tools" else "part"
    told = f"mine/{name} of {WHOSE} ({kind}) raised ZeroDivisionError"
    assert any(told in text for text in texts), texts[:3]


def faults_of(event):
    return [event["fault"]] if "fault" in event else event["result"]["faults"] if "result" in event else []


def test_in_an_advantage(install, tmp_path):
    install(SPOILED + hook("algorithms", COMPONENTS["algorithms"]))
    algorithm = assembly(tmp_path, "algorithm.use='mine/part'").get("algorithms")
    with pytest.raises(PluginFault) as caught:
        episode_advantages((GroupRewards("g", (0, 1), (0.0, 1.0)),), algorithm, CreditRule())
    assert f"mine/part of {WHOSE} (algorithms) raised ZeroDivisionError" in str(caught.value)


def test_while_a_generator_of_a_component_runs(install, tmp_path):
    part = "class Texts(fakes.Sums):\n    def texts(self, split):\n        yield 'one'\n        1 / 0\n"
    install(PARTS + part + hook("tasks", "TaskSpec(name='part', factory=Texts, config=fakes.TasksConfig)"))
    texts = assembly(tmp_path, "tasks.use='mine/part'").get("tasks").texts("train")
    assert next(texts) == "one"
    with pytest.raises(PluginFault) as caught:
        next(texts)
    assert f"mine/part of {WHOSE} (tasks)" in str(caught.value)


ITERATORS = {
    "map": "map(lambda number: 1 / number, (1, 0))",
    "an iterator of its own": "Own()",
}
OWN = """
class Own:
    left = 2
    def __iter__(self):
        return self
    def __next__(self):
        self.left -= 1
        return 1 / self.left
"""


@pytest.mark.parametrize("returned", ITERATORS.values(), ids=ITERATORS)
def test_while_an_iterator_of_a_component_runs(install, tmp_path, returned):
    part = f"{OWN}\nclass Texts(fakes.Sums):\n    def texts(self, split):\n        return {returned}\n"
    install(PARTS + part + hook("tasks", "TaskSpec(name='part', factory=Texts, config=fakes.TasksConfig)"))
    texts = assembly(tmp_path, "tasks.use='mine/part'").get("tasks").texts("train")
    assert next(texts) == 1
    with pytest.raises(PluginFault, match="ZeroDivisionError") as caught:
        next(texts)
    assert f"mine/part of {WHOSE} (tasks)" in str(caught.value)


def test_a_methods_keywords_may_have_any_name():
    class Part:
        def call(self, method, **others):
            return method, others

    assert Edge(Part(), "tools", "mine/part").call(method=1, kind=2) == (1, {"kind": 2})


def test_a_call_whose_task_is_cancelled_before_it_starts_is_never_made():
    """Made and not awaited it would be a warning when it is collected, wherever that happens to be."""
    made = []

    class Part:
        async def call(self):
            made.append(1)

    async def main():
        task = asyncio.ensure_future(Edge(Part(), "tools", "mine/part").call())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())
        gc.collect()
    assert not made


# --- in a worker --------------------------------------------------------------------------------------------------

WORKER = """
import json, pickle, sys
from composer_core.errors import ComposerError, boundary
from composer_core.plugins import load_manifest
from composer_core.records import resolve
try:
    plugins = load_manifest(json.load(sys.stdin))
    entry = plugins.registry.find("tools", "mine/write")
    with boundary("tools", entry.id):
        resolve(entry.spec.function)()
except ComposerError as error:
    sys.stdout.buffer.write(pickle.dumps(error))
"""


def in_a_worker(manifest, folder):
    """The error that a process of its own, which loads the recorded plugins, sends back."""
    done = subprocess.run(
        [sys.executable, "-c", WORKER],
        input=json.dumps(manifest).encode(),
        capture_output=True,
        env={"PYTHONPATH": str(folder)},
        check=True,
    )
    return pickle.loads(done.stdout)


def manifest_of(install, source):
    folder = install(source)
    return loaded().manifest(), folder


def test_in_a_call_in_a_worker(install):
    calls = "def write():\n    raise ZeroDivisionError('far away')\n" + hook("tools", "ToolSpec.of(write)")
    error = in_a_worker(*manifest_of(install, calls))
    assert isinstance(error, PluginFault)
    assert f"mine/write of {WHOSE} (tools) raised ZeroDivisionError: far away" in str(error)


def test_at_import_in_a_worker(install):
    manifest, folder = manifest_of(install, "")
    (folder / "mine_hooks.py").write_text("import a_library_of_the_controller_only")
    error = in_a_worker(manifest, folder)
    assert isinstance(error, PluginError)
    assert f"mine of {WHOSE}" in str(error)


def test_another_version_in_a_worker_is_refused_before_it_is_imported(install):
    manifest, folder = manifest_of(install, "")
    (folder / "mine_hooks.py").write_text("raise SystemExit('was imported')")
    older = [{**row, "version": "0.2"} if row["name"] == "mine" else row for row in manifest]
    text = str(in_a_worker(older, folder))
    assert "expected: composer-plugin-mine 0.2" in text
    assert f"found:    {WHOSE}" in text


def test_another_source_in_a_worker_is_refused(install):
    folder = install("")
    info = folder / "composer_plugin_mine-0.3.dist-info"
    (info / "direct_url.json").write_text(json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True}}))
    manifest = loaded().manifest()
    assert load_manifest(manifest).manifest() == manifest
    (folder / "mine_hooks.py").write_text(HEAD + "# changed\n")
    error = in_a_worker(manifest, folder)
    assert "the source of plugin mine is not what the run was started with" in str(error)
    assert f"mine of {WHOSE}" in str(error)


# --- at close -----------------------------------------------------------------------------------------------------


def closing(kind, base, later=True):
    record = COMPONENTS[kind]
    begin = record.index("spoiled(")
    end = record.index(")", begin) + 1
    return record[:begin] + f"spoiled({base}, 'close', {later})" + record[end:]


CLOSING = {
    "trainers": closing("trainers", "fakes.SimulatedTrainer"),
    "samplers": closing("samplers", "fakes.build_learner"),
    "sandboxes": closing("sandboxes", "fakes.sandboxes"),
    "executors": closing("executors", "fakes.InProcessExecutor"),
    "stores": closing("stores", "fakes.FolderStore", False),
}


@pytest.mark.parametrize("kind", sorted(CLOSING))
def test_at_close(install, tmp_path, kind):
    install(PARTS + SPOILED + hook(kind, CLOSING[kind]))
    run = tmp_path / "run"
    with pytest.raises(PluginFault) as caught:
        asyncio.run(train(load(FAKES, (*SHORT, choice(kind))), loaded(), RunDir(run)))
    told = f"mine/part of {WHOSE} ({kind}) raised ZeroDivisionError: in close (site/mine_hooks.py:"
    assert str(caught.value).startswith(told), "with the author's own line"
    assert str(caught.value).endswith(")\n  where:    while closing")
    assert (run / "summary.json").exists(), "the run itself was finished"
    diary = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    (failed,) = [event for event in diary if event["event"] == "PluginFailed"]
    assert (failed["plugin"], failed["dist"], failed["version"]) == ("mine/part", "composer-plugin-mine", "0.3")


def test_a_close_that_fails_does_not_hide_why_the_run_ended(install, tmp_path):
    install(PARTS + SPOILED + hook("stores", CLOSING["stores"]) + hook("trainers", COMPONENTS["trainers"]))
    with pytest.raises(PluginFault, match="in step") as caught:
        asyncio.run(
            train(load(FAKES, (*SHORT, choice("stores"), choice("trainers"))), loaded(), RunDir(tmp_path / "run"))
        )
    (note,) = caught.value.__notes__
    assert f"mine/part of {WHOSE} (stores) raised ZeroDivisionError: in close" in note


def test_every_component_that_fails_to_close_is_named(install, tmp_path):
    install(PARTS + SPOILED + hook("stores", CLOSING["stores"]) + hook("trainers", CLOSING["trainers"]))
    built = assembly(tmp_path, choice("stores"), choice("trainers"))
    for kind in ("stores", "trainers"):
        built.get(kind)
    with pytest.raises(PluginFault, match=r"\(trainers\) raised") as caught:
        asyncio.run(built.close())
    assert "(stores) raised" in caught.value.__notes__[0]
    asyncio.run(built.close())


def test_a_tracker_that_fails_to_close(install, tmp_path, capsys):
    record = (
        "TrackerSpec(name='part', factory=spoiled(fakes.ConsoleTracker, 'close', False), config=fakes.ConsoleConfig)"
    )
    install(PARTS + SPOILED + hook("trackers", record))
    asyncio.run(train(load(FAKES, (*SHORT, choice("trackers"))), loaded(), RunDir(tmp_path / "run")))
    assert f"mine/part of {WHOSE} (trackers) raised ZeroDivisionError: in close" in capsys.readouterr().err


# --- on the command line ------------------------------------------------------------------------------------------


def on_the_command_line(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code, capsys.readouterr().err


def test_a_fault_is_told_with_what_else_failed_and_how_to_see_more(install, tmp_path, capsys):
    install(PARTS + SPOILED + hook("stores", CLOSING["stores"]) + hook("trainers", COMPONENTS["trainers"]))
    settings = [part for text in (*SHORT, choice("stores"), choice("trainers")) for part in ("--set", text)]
    arguments = ["--plugins", "mine", "train", FAKES, "--run-dir", tmp_path / "run", *settings]
    code, told = on_the_command_line(capsys, *arguments)
    assert code == 1
    assert f"composer-run: mine/part of {WHOSE} (trainers) raised ZeroDivisionError: in step" in told
    assert f"composer-run: mine/part of {WHOSE} (stores) raised ZeroDivisionError: in close" in told
    assert "composer-run: --debug shows the traceback" in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("source", "found"), [("raise OSError('no terminal')", "OSError: no terminal"), ("exit(3)", "SystemExit: 3")]
)
def test_a_command_of_a_plugin_that_breaks_at_import(install, capsys, source, found):
    folder = install("", mine_parts=source)
    entries = folder / "composer_plugin_mine-0.3.dist-info/entry_points.txt"
    entries.write_text("[composer.commands]\nboom = mine_parts:command\n")
    code, told = on_the_command_line(capsys, "boom")
    assert code == 2
    assert f"who:      {WHOSE}" in told
    assert found in told


def test_a_plugin_that_is_blocked_and_not_installed_is_refused_by_every_command(capsys, tmp_path):
    for command in (["show", tmp_path], ["check", FAKES], ["plugins"]):
        code, told = on_the_command_line(capsys, "-p", "no:fakez", *command)
        assert code == 2
        assert "did you mean 'fakes'" in told


@pytest.mark.parametrize(
    "arguments", [("check", "no\x1b]0;x\x07.toml"), ("show", "\x1b]0;x"), ("show", "x", "\x1b]0;x")]
)
def test_what_an_error_quotes_cannot_steer_the_terminal(capsys, arguments):
    code, told = on_the_command_line(capsys, *arguments)
    assert code == 2
    assert "\\x1b" in told
    assert "\x1b" not in told


# --- the mechanism ------------------------------------------------------------------------------------------------


def test_an_error_of_the_framework_is_told_where_it_came_from_and_only_once():
    record_owner("sample", "composer-plugin-sample", "7")
    with pytest.raises(SandboxError) as caught, boundary("tools", "other/tool"), boundary("sandboxes", "sample/box"):
        raise SandboxError("no room")
    assert str(caught.value) == "no room\n  who:      sample/box of composer-plugin-sample 7"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.fields["plugin"]) == (str(caught.value), "sample/box")


def test_what_an_error_says_of_itself_is_completed_and_not_replaced():
    record_owner("sample", "composer-plugin-sample", "7")
    with pytest.raises(ConfigError) as caught, boundary("tools", "other/tool"):
        raise ConfigError("bad", who="sample/box")
    assert "who:      sample/box of composer-plugin-sample 7" in str(caught.value)
    with pytest.raises(ConfigError) as caught, boundary("tools", "sample/tool"):
        raise ConfigError("bad", who="the loader")
    assert "who:      the loader, sample/tool of composer-plugin-sample 7" in str(caught.value)


def test_one_name_that_two_distributions_have_registered_here_is_said_to_be_of_either():
    for version in ("1", "2", "1"):
        record_owner("twin", "composer-plugin-twin", version)
    assert who("twin/part") == "twin/part of composer-plugin-twin 1 or composer-plugin-twin 2"
    assert who("nobody/part") == "nobody/part"


def test_registering_a_module_is_enough():
    import types

    made = types.ModuleType("inline")
    made.COMPOSER_API = 1
    Plugins().register(Candidate("inline", "inline", "composer-plugin-inline", "0.9"), made)
    assert who("inline/any") == "inline/any of composer-plugin-inline 0.9"


def test_a_tracker_that_never_ends_is_named():
    class Stuck:
        def write(self, event):
            gate.wait(30)

        def close(self):
            pass

    gate = threading.Event()
    record_owner("sample", "composer-plugin-sample", "7")
    trackers = Trackers({"sample/stuck": Stuck()})
    trackers.emit(StageEnded(stage="rl"))
    (fault,) = trackers.close(timeout_s=0.01)
    assert str(fault) == "sample/stuck of composer-plugin-sample 7 (trackers) was still busy 0.01 s after the end"
    gate.set()
