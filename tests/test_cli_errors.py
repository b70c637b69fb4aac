"""Bad input ends with exit code 2, says who, where, expected, found and fix, and shows no traceback."""

import json
import shutil

import pytest

FAKES = "examples/fakes/run.toml"
QUICKSTART = "examples/quickstart/run.toml"


def refused(process, *words):
    assert process.returncode == 2, process.stderr
    assert "Traceback" not in process.stderr
    for word in words:
        assert word in process.stderr
    return process.stderr


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seeed=1", ["unknown key seeed", "did you mean 'seed'"]),
        ("tasks.cuont=3", ["unknown key cuont", "did you mean 'count'"]),
        ("stages.rl.learning_rat=1", ["learning_rat", "did you mean 'learning_rate'"]),
        ('stages.rl.steps="many"', ["expected int"]),
        ('sandbox.use="fakes/memry"', ["no component 'fakes/memry'", "did you mean 'fakes/memory'"]),
        ('sandbox.use="local/namespaces"', ["add 'local' to plugins"]),
        ('sampler.use="fakes/nothing"', ["sampler.use"]),
        ("rewards=[]", ["0 rewards decide the verdict"]),
        ("evaluations.main.tasks=1000", ["evaluations.main.tasks", "1000"]),
        ("evaluations=[{name='a',split='held_out'},{name='a',split='held_out'}]", ["two evaluations have one name"]),
        ("limits.banana=3", ["unknown key banana", "limits"]),
        ("stages.rl.stepz=3", ["unknown key stepz", "stages.rl", "did you mean 'steps'"]),
        ("samplers.unused={use='fakes/learner'}", ["no stage or evaluation uses this sampler"]),
    ],
)
def test_a_bad_setting_is_refused(composer_run, tmp_path, override, words):
    refused(composer_run("train", FAKES, "--run-dir", tmp_path / "run", "--set", override), *words)


def test_misspelt_keys_bad_values_and_unknown_components_are_told_in_one_go_with_the_file_and_what_was_set(
    composer_run, root, tmp_path
):
    path = tmp_path / "run.toml"
    path.write_text((root / FAKES).read_text().replace("seed = 1", "seeed = 1").replace("count = 12", "cuont = 12"))
    given = ['sandbox.use="fakes/memry"', 'model.use="fakes/byts"', 'stages.rl.steps="many"', "limits.banana=3"]
    refused(
        composer_run("check", path, *(f"--set={text}" for text in given)),
        f"6 problems in {' --set '.join([str(path), *given])}\n",
        "unknown key seeed: did you mean 'seed'?",
        "tasks: unknown key cuont: did you mean 'count'?",
        "sandbox.use: no component 'fakes/memry' among sandboxes (fix: did you mean 'fakes/memory'?)",
        "model.use: no component 'fakes/byts' among models",
        "stages[2].steps: expected int, found 'many'",
        "limits: unknown key banana",
    )


def test_settings_of_stages_and_components_are_told_in_one_go(composer_run):
    given = ["stages.rl.stepz=3", "stages.sft.learning_rat=1", "tasks.cuont=3", 'tools.settings."fakes/reed"={}']
    refused(
        composer_run("check", FAKES, *(f"--set={text}" for text in given)),
        "4 problems",
        "stages.rl.stepz: unknown key stepz (fix: did you mean 'steps'?)",
        "stages.sft.learning_rat: unknown key learning_rat",
        "tasks: unknown key cuont",
        "'settings' of tools that the run does not use; found fakes/reed",
    )


@pytest.mark.parametrize("text", ['plugins="fakes"', "plugns=[]", "tools.use='fakes/read'"])
def test_what_follows_from_another_problem_alone_is_not_told(composer_run, root, tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text((root / FAKES).read_text().replace("plugins =", "# plugins =") if "plugns" in text else "")
    path = path if "plugns" in text else root / FAKES
    assert "1 problem in" in refused(composer_run("check", path, "--set", text))


def test_a_misspelt_required_key_of_a_stage_is_named_with_a_suggestion(composer_run, root, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text((root / FAKES).read_text().replace("steps = 5", "stpes = 5"))
    refused(composer_run("check", path), "required key 'steps' is missing", "stpes: did you mean 'steps'?", str(path))


def test_a_misspelt_kernel_is_refused_by_check(composer_run):
    process = composer_run("check", QUICKSTART, "--set", "model.experts.kernel='hf/sorted-expert'")
    refused(process, "model.experts.kernel", "did you mean 'hf/sorted-experts'")


def test_a_module_that_is_not_in_the_library_is_refused_by_check(composer_run):
    process = composer_run("check", QUICKSTART, "--set", "tasks.modules=['number']")
    refused(process, "tasks.modules", "no module 'number'", "did you mean 'numbers_'")


def test_a_component_asked_for_what_it_cannot_do_is_refused(composer_run, tmp_path):
    process = composer_run(
        "check",
        FAKES,
        "--set",
        "plugins=['fakes','drills']",
        "--set",
        "sampler.use='drills/guesser'",
        "--set",
        "stages.rl.max_staleness=2",
    )
    refused(process, "drills/guesser does not offer sampler.swaps", "max_staleness > 0")


def test_a_sandbox_that_isolates_nothing_wants_to_be_trusted(composer_run):
    process_tier = ["check", FAKES, "--set", "plugins=['fakes','local']", "--set", "sandbox.use='local/process'"]
    refused(composer_run(*process_tier), "isolates nothing", "sandbox.trusted = true")
    assert composer_run(*process_tier, "--set", "sandbox.trusted=true").returncode == 0


def test_an_unknown_plugin_is_refused_with_a_suggestion(composer_run):
    refused(composer_run("--plugins", "drils", "check", FAKES), "plugin 'drils' is not installed", "'drills'")


def test_a_blocked_plugin_is_not_loaded(composer_run):
    error = refused(composer_run("-p", "no:fakes", "check", FAKES), "no component 'fakes/sums'")
    assert "leave out -p no:fakes" in error
    assert "add 'fakes'" not in error


@pytest.mark.parametrize("option", [["--plugins", "fakes"], ["-p", "no:fakes"], ["--debug"]])
def test_an_option_of_every_command_that_stands_behind_it_is_told_its_place(composer_run, option):
    refused(composer_run("check", FAKES, *option), f"stands before the command: composer-run {option[0]} ...")


def test_an_unknown_command_is_refused_with_a_suggestion(composer_run):
    refused(composer_run("trian", FAKES), "did you mean 'train'")


def test_a_file_that_is_no_toml_is_refused(composer_run, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("name = ")
    refused(composer_run("check", path), "no TOML", str(path))


def test_debug_shows_the_traceback(composer_run):
    process = composer_run("--debug", "check", FAKES, "--set", "seeed=1")
    assert process.returncode != 0
    assert "Traceback" in process.stderr


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise RuntimeError('no driver')", ["could not be imported", "RuntimeError: no driver"]),
        ("COMPOSER_API = 7", ["another API", "COMPOSER_API = 1", "COMPOSER_API = 7"]),
        (
            "from composer_core import hookimpl\nCOMPOSER_API = 1\n@hookimpl\ndef composer_tolls(): yield",
            ["unknown hook 'composer_tolls'", "did you mean 'composer_tools'"],
        ),
        (
            "from composer_core import hookimpl\nCOMPOSER_API = 1\n@hookimpl\ndef composer_tools(run): yield",
            ["does not fit the hooks", "run"],
        ),
        (
            "from composer_core import hookimpl, ToolSpec\nCOMPOSER_API = 1\n@hookimpl\n"
            "def composer_tools():\n    yield from (ToolSpec(name='a', function=len) for _ in 'ab')",
            ["claim the id 'mine/a'"],
        ),
    ],
)
def test_a_broken_plugin_is_named_with_its_distribution(composer_run, tmp_path, source, words):
    (tmp_path / "mine_hooks.py").write_text(source + "\n")
    info = tmp_path / "composer_plugin_mine-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: composer-plugin-mine\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text("[composer.plugins]\nmine = mine_hooks\n")
    process = composer_run("--plugins", "mine", "check", FAKES, PYTHONPATH=str(tmp_path))
    refused(process, "composer-plugin-mine 0.3", *words)
    listing = composer_run("plugins", PYTHONPATH=str(tmp_path))
    assert listing.returncode == 0, "a broken plugin is a row of the listing, not a crash"
    assert "mine" in listing.stdout


def test_a_run_folder_that_holds_a_run_is_never_overwritten(composer_run, tmp_path):
    run = tmp_path / "run"
    small = ["--set", "stages.rl.steps=1", "--set", "evaluations=[]", "--set", "stages.rl.evaluate_every=0"]
    assert composer_run("train", FAKES, "--run-dir", run, *small).returncode == 0
    before = (run / "events.jsonl").read_bytes()
    refused(composer_run("train", FAKES, "--run-dir", run), "already holds a run", "--resume")
    assert (run / "events.jsonl").read_bytes() == before


def test_a_folder_that_holds_a_run_of_another_configuration_is_not_carried_on(composer_run, tmp_path):
    run = tmp_path / "run"
    train = ("train", FAKES, "--run-dir", run, "--or-resume", "--set", "stages.rl.evaluate_every=0")
    small = ("--set", "stages.rl.steps=1", "--set", "evaluations=[]")
    assert composer_run(*train, *small).returncode == 0
    before = (run / "events.jsonl").read_bytes()
    process = composer_run(*train, "--set", "stages.rl.steps=2", "--set", "seed=5", "--set", "evaluations=[]")
    refused(process, "2 problems in", "of another configuration", "seed: 1 in the folder, 5 now", "stages[2].steps: 1")
    assert (run / "events.jsonl").read_bytes() == before
    refused(composer_run("--plugins", "local", *train, *small), "plugins: ['fakes'] in the folder, ['fakes', 'local']")
    refused(composer_run("train", "--resume", run, "--or-resume"), "--resume", "leave out", "--or-resume")
    again = composer_run(*train, *small)
    assert again.returncode == 0
    assert "is finished" in again.stderr
    assert (run / "events.jsonl").read_bytes() == before


def test_what_ended_before_its_configuration_was_written_is_begun_and_not_carried_on(composer_run, tmp_path):
    (tmp_path / "plugins.json").write_text("[]")
    (tmp_path / "lock").touch()
    train = ("train", FAKES, "--run-dir", tmp_path, "--or-resume", "--set", "stages.rl.steps=1", "--set")
    process = composer_run(*train, "stages.rl.evaluate_every=0", "--set", "evaluations=[]")
    assert process.returncode == 0, process.stderr
    assert json.loads((tmp_path / "plugins.json").read_text())


def test_a_file_that_asks_for_tasks_that_do_not_exist_can_be_corrected_and_run_again(composer_run, tmp_path):
    run = tmp_path / "run"
    small = ["--set", "stages.rl.steps=1", "--set", "stages.rl.evaluate_every=0", "--set"]
    main = "evaluations=[{name='main', split='%s', tasks=2, attempts=1, when=['after']}]"
    refused(
        composer_run("train", FAKES, "--run-dir", run, *small, main % "heldout"),
        "evaluations.main.split: the task set has no split 'heldout'",
        "did you mean 'held_out'?",
    )
    assert not run.exists()
    process = composer_run("train", FAKES, "--run-dir", run, *small, main % "held_out")
    assert process.returncode == 0, process.stderr


def test_a_split_that_does_not_exist_is_not_validated(composer_run):
    refused(
        composer_run("validate", FAKES, "--split", "held-out"),
        "no split 'held-out'",
        "where:    --split",
        "did you mean 'held_out'?",
    )


def test_a_folder_with_files_of_somebody_else_is_no_run_folder(composer_run, tmp_path):
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "mine.safetensors").write_text("mine")
    error = refused(
        composer_run("train", FAKES, "--run-dir", tmp_path), "not of a run", f"where:    {tmp_path}", "fix:"
    )
    assert "found:    weights/mine.safetensors" in error
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


@pytest.mark.parametrize("below", ["", "run"])
def test_a_run_folder_where_a_file_is_is_refused(composer_run, tmp_path, below):
    taken = tmp_path / "taken.toml"
    taken.write_text("mine")
    place = taken / below
    refused(composer_run("train", FAKES, "--run-dir", place), "cannot be used", f"where:    {place}", "found:", "fix:")
    assert taken.read_text() == "mine"


def test_a_run_folder_that_the_system_does_not_make_is_refused(composer_run):
    process = composer_run("train", FAKES, "--run-dir", "/proc/x")
    refused(process, "cannot be used", "where:    /proc/x", "found:    No such file or directory", "choose another")


@pytest.mark.parametrize("key", ["name", "stages.rl.name", "evaluations.main.name"])
def test_a_name_that_leads_out_of_the_run_folder_is_refused(composer_run, root, tmp_path, key):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    process = composer_run("train", root / FAKES, "--set", f"{key}=../../etc", cwd=folder)
    refused(process, "'name' must be", "found '../../etc'", f" --set {key}=../../etc")
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b"]


@pytest.mark.parametrize("command", [["train", "--resume"], ["eval", FAKES, "--run"], ["agent"]])
def test_a_file_is_no_run(composer_run, root, command):
    path = root / FAKES
    refused(composer_run(*command, path, *([root] if command == ["agent"] else [])), "no run to", f"where:    {path}")


def test_resuming_what_is_no_run_is_refused(composer_run, tmp_path):
    refused(composer_run("train", "--resume", tmp_path), "no run to resume", "--run-dir")


def test_a_damaged_checkpoint_is_refused(composer_run, tmp_path):
    run = tmp_path / "run"
    assert composer_run("train", FAKES, "--run-dir", run).returncode == 0
    checkpoint = max((run / "checkpoints").iterdir(), key=lambda path: int(path.name))
    next(path for path in checkpoint.iterdir()).write_bytes(b"rotten")
    process = composer_run("train", "--resume", run)
    assert process.returncode != 0
    assert "does not match its manifest" in process.stderr
    shutil.rmtree(run)


def test_a_commit_made_with_another_tokenizer_is_refused(composer_run, tmp_path):
    run = tmp_path / "run"
    assert composer_run("train", FAKES, "--run-dir", run).returncode == 0
    commit = json.loads((run / "commit.json").read_text())
    (run / "commit.json").write_text(json.dumps({**commit, "tokenizer": "another"}))
    (run / "summary.json").unlink()  # as if it had been interrupted at its end
    refused(composer_run("train", "--resume", run), "another tokenizer", "expected: another", "found:    bytes")
    refused(composer_run("eval", FAKES, "--run", run), "another tokenizer")
