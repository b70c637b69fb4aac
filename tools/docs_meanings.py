"""What the methods of Protocols do that have no docstring of their own, a sentence each, for `tools/docs_source.py`.

A method is either documented where it is defined or here; `tools/docs.py` refuses neither and both.
"""

from __future__ import annotations

from collections.abc import Mapping

MEANINGS: Mapping[str, str] = {
    "SandboxHandle.exec": "Run a command to its end. Its time limit is the task's `command_s` unless one is given.",
    "SandboxHandle.read": "The whole of a file.",
    "SandboxHandle.write": "Write a whole file; missing folders are made.",
    "SandboxHandle.list": 'The entries of a folder; the workspace itself is "".',
    "SandboxBackend.exec": "Run a command. How it ended, in whatever way, is a result and never an exception.",
    "SandboxBackend.list": 'The entries of a folder; the workspace itself is "". Raises PathError.',
    "SandboxProvider.create": "n sandboxes, or for each the reason why not. Raises TemplateMissing.",
    "SandboxProvider.attach": "A live sandbox by its id. Raises SandboxGone.",
    "Forks.snapshot": "Capture the files; `create` starts from the capture, also when this sandbox is gone.",
    "Forks.fork": "n new sandboxes from one capture, or for each the reason why not.",
    "Changes.changes": "The patch since the template; changed files over the limit are named in `skipped`.",
    "FullSnapshots.full_snapshot": "Capture files, memory and processes; `create` starts from the capture.",
    "Sessions.session_exec": "Run a command in the shell of that name, which its first command opens.",
    "Pauses.pause": "Nothing inside runs until `resume`.",
    "Pauses.resume": "What was inside runs on.",
    "Networks.set_network": "From now on exactly these hosts can be reached.",
    "Leases.renew": "Keep the sandbox for so many seconds from now.",
    "Tokenizer.encode": "The ids of a text, never one of a control token.",
    "Tokenizer.decode": "The text of any ids.",
    "Tokenizer.save": "Write the tokenizer's files into a folder, which is made.",
    "Renderer.parse": "The words and calls of sampled ids. Any ids parse; a call that cannot be read has a `problem`.",
    "Renderer.stop_ids": "The ids that end a turn.",
    "Sampler.generate": "Continue the ids until a stop id, `max_tokens` or the end of the sampler's window.",
    "Sampler.close": "Free what it holds; safe twice.",
    "Trainer.step": "One update by one batch, and what can be measured of it.",
    "Trainer.load": "Go on from what `save` wrote. Raises StoreError for what is not usable.",
    "Trainer.close": "Free what it holds; safe twice, and before anything began.",
    "TaskSet.tasks": "The tasks of a split, always in the same order. Raises ConfigError for an unknown split.",
    "TaskSet.task": "One task by its id. Raises ConfigError for an unknown one.",
    "TaskSet.tree": "The files of a workspace.",
    "TaskSet.grading": "How a task is graded; called only while one of its episodes is.",
    "TaskSet.gold": "A patch that solves the task.",
    "GradingRoom.sandbox": "The room's own sandbox, a `SandboxHandle`, for what `run` does not tell.",
    "Context.next": "How the episode goes on; asked before each turn.",
    "Executor.start": "Get ready; called once, before the first `submit`.",
    "Executor.stats": "Counters since the start; those of the policy's sampler are called `sampler/NAME`.",
    "Executor.close": "End what it started; safe twice and after a failed start.",
    "Tracker.write": "One event. What it does not know it ignores.",
    "Tracker.close": "Write what is left; safe twice.",
    "Store.list": "The URIs of all keys that begin so, sorted.",
    "Store.delete": "Remove a blob; one that is not there is no error.",
    "PolicyModel.new_cache": "Room for `rows` sequences of up to `capacity` tokens.",
    "PolicyModel.state_dict": "As of `torch.nn.Module`: what a trainer exports.",
    "PolicyModel.load_state_dict": "As of `torch.nn.Module`: what a sampler loads.",
    "PolicyModel.parameters": "As of `torch.nn.Module`: what an optimizer moves.",
    "PolicyModel.train": "As of `torch.nn.Module`.",
    "PolicyModel.eval": "As of `torch.nn.Module`.",
}
