"""apply_patch: one envelope of changes, an alternative to edit_file for comparing formats of edits.

All of it is made up before anything is written: a patch that does not fit changes nothing.
"""

from __future__ import annotations

from composer_core import ToolContext, ToolError, ToolOutput
from composer_plugin_code.patches import Change, parsed, patched
from composer_plugin_code.paths import as_text, clean, exists, mark_read, read_bytes, remove, was_read, write_bytes

Files = dict[str, str | None]
"""Path -> new text, None for a file that goes."""


async def apply_patch(context: ToolContext, patch: str) -> ToolOutput:
    """Add, delete, move and update files by one patch, all of it or nothing.

    Args:
        patch: from "*** Begin Patch" to "*** End Patch", with sections "*** Add File: PATH" (lines with +), "*** Delete
            File: PATH" and "*** Update File: PATH" (perhaps "*** Move to: PATH", then hunks: "@@" with a line above
            the change, and lines that begin with a space, - or +)
    """
    files: Files = {}
    for change in parsed(patch):
        files |= await _outcome(context, change, files)
    known = all(was_read(context, path) for path, text in files.items() if text is not None)
    for path, text in files.items():
        if text is None:
            await remove(context, path)
        else:
            await write_bytes(context, path, text.encode(errors="surrogateescape"))
            mark_read(context, path)
    told = [f"{'deleted' if text is None else 'wrote'} {path}" for path, text in files.items()]
    return ToolOutput("\n".join(told), data={"written": list(files), "read_before": known})


async def _outcome(context: ToolContext, change: Change, files: Files) -> Files:
    """The files that a change leaves, given those of the changes before it."""
    path = clean(change.path)
    if path in files:
        raise ToolError(f"the patch changes {path} twice; put its hunks into one section")
    if change.kind == "add":
        if await exists(context, path):
            raise ToolError(f"{path} exists; update it, or write it whole with write_file")
        return {path: change.text}
    data = await read_bytes(context, path)
    if change.kind == "delete":
        return {path: None}
    as_text(data, path)
    text = patched(path, data.decode(errors="surrogateescape"), change.hunks)
    target = clean(change.target) if change.target else path
    if target != path and (target in files or await exists(context, target)):
        raise ToolError(f"{path} cannot move to {target}, which exists")
    return {target: text} if target == path else {path: None, target: text}
