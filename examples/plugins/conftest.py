"""These plugins stand outside the workspace: their tests run where they are installed (see test_teaching_plugin.py)."""

collect_ignore_glob = ["*/tests"]
