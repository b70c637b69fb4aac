"""A workspace that is a repository: git works in the sandbox, and what it keeps is no part of a patch."""

import asyncio

from composer_core import Tree
from composer_core.opening import open_sandboxes
from composer_core.types import TaskView
from composer_envkit import committed

TREE = committed(Tree.of({"calc.py": "x = 1\n", "pkg/a.txt": "a\n"}))
WORK = """
git status --porcelain --ignored; git log --format=%s
echo 'x = 2' > calc.py; git diff --stat; git add --all; git commit --quiet -m 'the repair'; git status --porcelain
git log --format='%an: %s'; printf '#!/bin/sh' > .git/hooks-of-mine
"""
SAID = """All files
 calc.py | 2 +-
 1 file changed, 1 insertion(+), 1 deletion(-)
agent: the repair
task: All files
"""


def test_an_agent_commits_and_its_patch_is_what_it_changed():
    async def main():
        async with open_sandboxes("local/namespaces") as sandboxes:
            view = TaskView("calc", "", sandboxes.offer(TREE), needs=("git",))
            async with await sandboxes.create(view) as sandbox:
                result = await sandbox.exec(["sh", "-c", WORK], timeout_s=60)
                assert (result.stdout + result.stderr).decode() == SAID
                patch = await sandbox.patch()
                assert [file.path for file in patch.writes] == ["calc.py"] and not patch.deletes + patch.skipped

    asyncio.run(main())
