"""A whole run through a server is the run without one: same traces, patches, scores and weights."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from servers import TOKEN, end, envd, start

from composer_core.cli import main
from composer_core.errors import SandboxUnreachable
from composer_core.protocols import TemplateSpec
from composer_core.traces import decode
from composer_core.trees import Tree

ROOT = Path(__file__).resolve().parents[4]
FAKES = ROOT / "examples/fakes/run.toml"


def trained(run: Path, *words: str) -> Path:
    with pytest.raises(SystemExit) as ended:
        main([*words[:2], "train", str(FAKES), "--run-dir", str(run), *words[2:]])
    assert ended.value.code == 0
    return run


def told(run: Path) -> dict[str, tuple]:
    """What each episode was, without what it took."""
    found = {}
    for path in sorted((run / "traces").iterdir()):
        trace = decode(path.read_bytes())
        turns = [(turn.calls, [(result.text, result.ok) for result in turn.results]) for turn in trace.turns]
        ids = [bytes(branch.ids.data) for branch in trace.branches]
        scores = [(score.reward, score.value) for score in trace.scores]
        found[path.name] = (ids, turns, trace.stop, trace.verdict, scores, trace.patch)
    return found


def test_a_run_through_a_server_cannot_be_told_from_one_without(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    plain = trained(tmp_path / "plain", "-p", "no:report")
    with envd("fakes/memory", tmp_path / "state") as server:
        monkeypatch.setenv("COMPOSER_ENVD_TOKEN", TOKEN)
        settings = ["sandbox.use=server/remote", f'sandbox.urls=["{server.url}"]', "sandbox.group=4"]
        use = [word for text in settings for word in ("--set", text)]
        with pytest.raises(SystemExit) as refused:
            main(["--plugins", "server", "train", str(FAKES), "--run-dir", str(tmp_path / "refused"), *use])
        assert refused.value.code == 2 and "do not offer isolates" in capsys.readouterr().err
        use += ["--set", "sandbox.needs=[]"]
        through = trained(tmp_path / "through", "--plugins", "server", *use)
    assert told(plain) == told(through) and len(told(plain)) > 50
    ours, theirs = (json.loads((run / "summary.json").read_text()) for run in (plain, through))
    for name in ("solve_rate_before", "solve_rate_after", "gain", "episodes", "void_share"):
        assert ours[name] == theirs[name], name
    assert TOKEN not in (through / "config.json").read_text(), "the token stands in no run folder"


def test_a_server_says_where_its_token_is_and_how_it_ends_and_its_client_that_it_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr("composer_plugin_server.connection.RETRY_S", 0.0)
    monkeypatch.setattr("composer_plugin_server.connection.TRIES", 1)

    async def main():
        server = start("fakes/memory", tmp_path / "state")
        provider = server.provider()
        try:
            await provider.create(await provider.prepare(TemplateSpec(Tree(()).ref), Tree(())), 2)
            server.process.terminate()
            said = server.process.stdout.read()
        finally:
            end(server)
        assert "the token in the variable COMPOSER_ENVD_TOKEN" in server.said and TOKEN not in server.said
        assert "asked to end; sandboxes that are destroyed: 2" in said and said.endswith("envd: ended\n")
        with pytest.raises(SandboxUnreachable, match="does not answer") as gone:
            await provider.close()
        assert gone.value.__suppress_context__, "what aiohttp went through is nobody's concern"

    asyncio.run(main())


def test_a_server_that_is_not_there_is_something_for_a_person_to_mend(monkeypatch, capsys):
    monkeypatch.setattr("composer_plugin_server.connection.RETRY_S", 0.0)
    monkeypatch.setattr("composer_plugin_server.connection.TRIES", 1)
    monkeypatch.setenv("COMPOSER_ENVD_TOKEN", TOKEN)
    words = ["--plugins", "server", "check", str(FAKES), "--probe", "--set", "sandbox.use=server/remote"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--set", 'sandbox.urls=["http://127.0.0.1:9"]'])
    assert ended.value.code == 2
    assert "is composer-run envd running there?" in capsys.readouterr().err
