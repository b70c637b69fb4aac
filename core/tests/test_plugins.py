"""Loading: exactly what is listed, every refusal with who, what and how to mend it."""

import types

import pytest

from composer_core import RewardSpec, SandboxSpec, ToolSpec, hookimpl
from composer_core.errors import ConfigError, PluginError, PluginFault
from composer_core.listing import report
from composer_core.plugins import Candidate, Plugins, candidates, select


def module(name="demo", api=1, **hooks):
    made = types.ModuleType(name)
    made.COMPOSER_API = api
    for hook, function in hooks.items():
        function.__name__ = hook
        setattr(made, hook, hookimpl(function))
    return made


def candidate(name="demo"):
    return Candidate(name, f"{name}.plugin", f"composer-plugin-{name}", "1.2.3")


def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


def tools():
    yield ToolSpec.of(shout)


def test_records_of_a_plugin_are_registered_under_its_name():
    plugins = Plugins()
    plugins.register(candidate(), module(composer_tools=tools))
    entry = plugins.registry.find("tools", "demo/shout")
    assert (entry.plugin, entry.version, entry.spec.summary) == ("demo", "1.2.3", "Say it louder.")
    assert plugins.registry.find("tools", "shout") is entry, "a bare name is enough where it is unique"


def test_first_listed_plugin_registers_first():
    plugins = Plugins()
    for name in ("zulu", "alpha"):
        plugins.register(candidate(name), module(name, composer_tools=tools))
    assert [item.candidate.name for item in plugins.loaded] == ["zulu", "alpha"]
    assert [entry.id for entry in plugins.registry.of("tools")] == ["alpha/shout", "zulu/shout"]


def test_two_components_with_one_id_are_refused_with_both_owners():
    def twice():
        yield ToolSpec.of(shout)
        yield ToolSpec.of(shout)

    with pytest.raises(PluginError, match="demo/shout") as caught:
        Plugins().register(candidate(), module(composer_tools=twice))
    assert "composer-plugin-demo 1.2.3" in str(caught.value)


def test_a_record_of_the_wrong_kind_is_refused():
    def wrong():
        yield RewardSpec(name="r", function=len)

    with pytest.raises(PluginError, match="RewardSpec where tools"):
        Plugins().register(candidate(), module(composer_tools=wrong))


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (lambda: ToolSpec.of(shout, effect="wirte"), "effect is one of read, write, exec, found 'wirte'"),
        (lambda: RewardSpec(name="r", function=len, scope="gruop"), "scope is one of episode, group, found 'gruop'"),
        (lambda: SandboxSpec(name="s", factory=len, isolation="contaner"), "found 'contaner'"),
    ],
)
def test_a_word_that_a_record_does_not_know_is_refused_with_the_plugin_and_a_suggestion(record, said):
    def yields():
        yield record()

    with pytest.raises(PluginFault, match=r"did you mean '(write|group|container)'") as caught:
        Plugins().register(candidate(), module(composer_tools=yields))
    assert said in str(caught.value)
    assert "composer-plugin-demo 1.2.3" in str(caught.value)


def test_an_outcome_of_a_group_is_refused_since_a_verdict_is_about_one_episode():
    def yields():
        yield RewardSpec(name="r", function=len, scope="group", outcome=True)

    with pytest.raises(PluginFault, match='outcome=True needs scope="episode"') as caught:
        Plugins().register(candidate(), module(composer_rewards=yields))
    assert "composer-plugin-demo 1.2.3" in str(caught.value)


def test_another_api_is_refused_with_both_numbers():
    with pytest.raises(PluginError) as caught:
        Plugins().register(candidate(), module(api=99))
    assert "COMPOSER_API = 1" in str(caught.value)
    assert "COMPOSER_API = 99" in str(caught.value)


def test_a_module_that_names_no_api_is_told_what_to_write():
    made = module()
    del made.COMPOSER_API
    with pytest.raises(PluginError, match="does not say for which API") as caught:
        Plugins().register(candidate(), made)
    assert "fix:      write COMPOSER_API = 1 at the top of its hook module" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (lambda: shout, "<function shout"),
        (lambda: ToolSpec.of(shout), "ToolSpec("),
        (lambda: None, "None"),
        (lambda: [shout], "<function shout"),
    ],
    ids=["a function", "a lone record", "nothing", "a list of functions"],
)
def test_a_hook_that_gives_no_records_is_told_what_to_yield(given, found):
    with pytest.raises(PluginError, match=r"demo .*(no records|where tools are registered)") as caught:
        Plugins().register(candidate(), module(composer_tools=given))
    text = str(caught.value)
    assert found in text
    assert "composer-plugin-demo 1.2.3" in text
    assert "yield ToolSpec.of(...), as in the example of hookspecs.composer_tools" in text


def test_a_hook_that_yields_a_record_of_another_kind_is_told_its_hook():
    with pytest.raises(PluginError, match="yield it from the hook composer_rewards"):
        Plugins().register(candidate(), module(composer_tools=lambda: [RewardSpec(name="r", function=len)]))


def test_a_library_that_a_hook_module_lacks_is_to_be_installed(tmp_path, monkeypatch):
    (tmp_path / "lacking_hooks.py").write_text("import no_such_library")
    (tmp_path / "torn_hooks.py").write_text("import torn_hooks.parts")
    monkeypatch.syspath_prepend(tmp_path)
    fixes = {
        "lacking": "fix:      pip install the distribution that brings 'no_such_library'",
        "torn": "--force-reinstall composer-plugin-torn",
    }
    for name, fix in fixes.items():
        with pytest.raises(PluginError, match="could not be imported") as caught:
            Plugins().load([Candidate(name, f"{name}_hooks", f"composer-plugin-{name}", "0.1")])
        assert fix in str(caught.value)


def test_a_misspelt_hook_is_refused_with_a_suggestion():
    with pytest.raises(PluginError, match="composer_tool") as caught:
        Plugins().register(candidate(), module(composer_tool=tools))
    assert "did you mean 'composer_tools'" in str(caught.value)


def test_a_hook_with_a_wrong_signature_is_refused():
    def composer_tools(config):
        yield from ()

    with pytest.raises(PluginError, match="does not fit the hooks") as caught:
        Plugins().register(candidate(), module(composer_tools=composer_tools))
    assert "config" in str(caught.value)


def test_an_async_hook_is_refused():
    async def composer_tools():
        return []

    with pytest.raises(PluginError, match="plain function"):
        Plugins().register(candidate(), module(composer_tools=composer_tools))


def test_a_hook_without_its_mark_is_refused():
    made = module()
    made.composer_tools = list
    with pytest.raises(PluginError, match="without @hookimpl"):
        Plugins().register(candidate(), made)


def test_a_hook_that_raises_is_attributed():
    def broken():
        raise ZeroDivisionError("oops")

    with pytest.raises(PluginFault) as caught:
        Plugins().register(candidate(), module(composer_tools=broken))
    assert caught.value.plugin == "demo/composer_tools"


def test_a_plugin_that_raises_at_import_is_named_with_dist_version_and_cause(tmp_path, monkeypatch):
    (tmp_path / "broken_hooks.py").write_text("raise RuntimeError('no such driver')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError) as caught:
        Plugins().load([Candidate("broken", "broken_hooks", "composer-plugin-broken", "0.1")])
    text = str(caught.value)
    assert "composer-plugin-broken 0.1" in text
    assert "RuntimeError: no such driver" in text
    assert "fix:" in text


def test_an_unknown_plugin_is_refused_with_a_suggestion():
    with pytest.raises(PluginError, match="not installed") as caught:
        select(["fakez"])
    assert "did you mean 'fakes'" in str(caught.value)


def test_all_plugins_that_are_not_installed_are_told_at_once():
    with pytest.raises(PluginError, match="'fakez' and 'drilz' is not installed") as caught:
        select(["fakez", "core", "drilz"])
    assert "'fakez': did you mean 'fakes'?; 'drilz': did you mean 'drills'?" in str(caught.value)


def test_only_named_plugins_are_selected_and_blocking_wins():
    assert [one.name for one in select(["fakes"])] == ["core", "fakes"]
    assert [one.name for one in select(["fakes"], blocked=["fakes"])] == ["core"]
    with pytest.raises(PluginError, match="cannot be blocked"):
        select([], blocked=["core"])


def test_dash_and_underscore_name_the_same_plugin():
    known = {"hidden-tests": candidate("hidden-tests")}
    assert select(["hidden_tests"], known=known)[1].name == "hidden-tests"


def test_an_unknown_component_says_which_plugin_to_list():
    plugins = Plugins().load(select([]))
    with pytest.raises(ConfigError) as caught:
        plugins.registry.find("sandboxes", "fakes/memory", where="sandbox.use")
    assert "add 'fakes' to plugins" in str(caught.value)


def test_the_report_lists_broken_plugins_instead_of_raising(monkeypatch):
    installed = [Candidate("broken", "no_such_module_at_all", "composer-plugin-broken", "0.1")]
    monkeypatch.setattr("composer_core.listing.installed", lambda: installed)
    rows = {row.name: row for row in report()}
    assert rows["broken"].state == "failed"
    assert "no_such_module_at_all" in rows["broken"].why
    assert rows["core"].state == "loaded"


def test_every_installed_plugin_of_the_workspace_loads():
    plugins = Plugins().load(select(sorted(candidates())))
    assert len(plugins.registry) > len(plugins.loaded)
