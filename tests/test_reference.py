"""The reference run files: how they reach a person, what they need, what their keys mean, that `check` accepts them.

The run itself is in test_reference_run.py.
"""

import json
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = ["composer.toml", "cluster.toml"]


def data_of(name):
    return tomllib.loads((ROOT / "reference" / name).read_text())


def test_the_command_writes_both_files_and_nothing_over_a_file(composer_run, tmp_path):
    first, second = (composer_run("reference", tmp_path / "new") for _ in range(2))
    assert first.returncode == 0, first.stderr
    for name in FILES:
        assert (tmp_path / "new" / name).read_bytes() == (ROOT / "reference" / name).read_bytes()
    assert second.returncode == 2
    assert "composer.toml" in second.stderr


def test_installing_it_brings_every_plugin_that_is_named():
    project = tomllib.loads((ROOT / "reference/pyproject.toml").read_text())["project"]
    named = {f"composer-plugin-{plugin}~=0.1.0" for name in FILES for plugin in data_of(name)["plugins"]}
    assert set(project["dependencies"]) == named | {"composer-core~=0.1.0"}


def test_every_key_of_both_files_is_explained():
    page = (ROOT / "docs/reference-pipeline.md").read_text()
    for name in FILES:
        rows = page.partition(f"{name} -->")[2].partition("<!-- end -->")[0]
        assert not [key for key in keys_of(data_of(name)) if f"| `{key}` |" not in rows]


def keys_of(table, prefix=""):
    """Paths of all settings; entries of a list share theirs, and tables by a component's id are values."""
    for key, value in table.items():
        path = f"{prefix}{key}"
        if isinstance(value, list) and isinstance(value[0], dict):
            for entry in value:
                yield from keys_of(entry, f"{path}.")
        elif isinstance(value, dict) and path not in ("tools.settings", "tools.without"):
            yield from keys_of(value, f"{path}.")
        else:
            yield path


def test_check_accepts_the_cluster_here_and_counts_a_model_that_is_there(composer_run, tmp_path):
    shape = {"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4}
    experts = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "intermediate_size": 6144}
    told = {"model_type": "qwen3_moe", "vocab_size": 151936, "head_dim": 128, **shape, **experts}
    (tmp_path / "config.json").write_text(json.dumps(told))
    found = composer_run("check", "reference/cluster.toml", "--json", "--set", f"model.path={tmp_path}")
    assert found.returncode == 0, found.stderr
    plan = json.loads(found.stdout)
    assert plan["memory"]["unknown"] == []
    used = {row["id"] for row in plan["components"]}
    assert {"ray/ray", "microvm/firecracker", "hf/causal-lm", "remote-sampler/openai", "mxfp8/experts"} <= used
