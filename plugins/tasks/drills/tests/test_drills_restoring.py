"""The restoring exercise: what a document holds, and that it never shows anything of a held-out edit site."""

import re
from collections import defaultdict

from composer_core.noise import key_of
from composer_plugin_drills.catalog import body, functions
from composer_plugin_drills.drills import drills
from composer_plugin_drills.restoring import STRANGERS, chosen, documents, free_tokens, replaceable

KNOWN = [one for one in functions().values() if not one.held_out]
BY_PATH = {one.path: one for one in KNOWN}


def parts(document: str) -> tuple[str, str, str, str]:
    """Path, noisy text, and what follows `old` and `new`."""
    path, rest = document.split("\n", 1)
    noisy, rest = rest.split("\nold\n")
    old, new = rest.split("\nnew\n")
    return path, noisy + "\n", old, new.rstrip("\n")


def test_a_document_is_a_noisy_file_then_its_body_as_it_stands_and_as_it_should_be() -> None:
    for document in documents(KNOWN, 2):
        path, noisy, old, new = parts(document)
        assert (old, new) == (body(noisy), body(BY_PATH[path].text))
        assert old != new
        assert noisy.split("\n")[:2] == BY_PATH[path].text.split("\n")[:2]


def test_noise_differs_from_variant_to_variant_and_repeats_from_call_to_call() -> None:
    first, again = list(documents(KNOWN[:10], 30)), list(documents(KNOWN[:10], 30))
    assert first == again
    assert len(set(first)) > 0.9 * len(first) > 250


def test_edit_sites_of_held_out_splits_are_never_touched() -> None:
    free = {(one.path, token.line, token.start) for one in KNOWN for token in free_tokens(one)}
    spans = defaultdict(list)
    for drill in drills().values():
        if drill.split in ("new_bug", "new_bug_dev"):
            spans[drill.path, drill.line].append(drill.span)
    held_out = set()
    for one in KNOWN:
        for token in replaceable(one.text):
            sites = spans[one.path, token.line]
            if any(token.start < stop and start < token.end for start, stop in sites):
                held_out.add((one.path, token.line, token.start))
    assert len(held_out) > 700
    assert not held_out & free
    assert len(free) > 2 * len(held_out)


def test_everything_but_free_tokens_stands_unchanged_and_in_order() -> None:
    for one in KNOWN[::20]:
        free = free_tokens(one)
        patterns = []
        for number, line in enumerate(one.text.split("\n"), 1):
            cuts = [0, *(end for token in free if token.line == number for end in (token.start, token.end)), len(line)]
            kept = [re.escape(line[start:stop]) for start, stop in zip(cuts[::2], cuts[1::2], strict=True)]
            patterns.append(re.compile(".*".join(kept)))
        for document in documents([one], 50):
            noisy = parts(document)[1].split("\n")
            assert len(noisy) == len(patterns)
            for pattern, line in zip(patterns, noisy, strict=True):
                assert pattern.fullmatch(line)


def test_noise_touches_from_one_token_to_all() -> None:
    sizes = {len(chosen(20, key_of("test", number))) for number in range(400)}
    assert sizes == set(range(1, 21))
    assert chosen(20, 7) == sorted(set(chosen(20, 7)))
    assert chosen(0, 7) == []


def test_a_share_of_documents_shows_the_body_of_another_function() -> None:
    texts = list(documents(KNOWN, 4))
    lines = {one.path: one.text.count("\n") for one in KNOWN}
    strange = sum(noisy.count("\n") != lines[path] for path, noisy, _, _ in map(parts, texts)) / len(texts)
    assert 0.5 / STRANGERS < strange < 1 / STRANGERS


def test_replaceable_is_every_token_below_the_docstring() -> None:
    text = 'def f(a):\n    """Say a."""\n    if a[0] <= "x":\n        return -3\n'
    assert [(one.line, one.text, one.kind) for one in replaceable(text)] == [
        (3, "if", "keyword"),
        (3, "a", "name"),
        (3, "[", "mark"),
        (3, "0", "number"),
        (3, "]", "mark"),
        (3, "<=", "operator"),
        (3, '"x"', "string"),
        (3, ":", "mark"),
        (4, "return", "keyword"),
        (4, "-", "operator"),
        (4, "3", "number"),
    ]
