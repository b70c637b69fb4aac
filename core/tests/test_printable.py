"""Long texts, cut."""

from hypothesis import given
from hypothesis import strategies as st

from composer_core.printable import clip


@given(st.integers(0, 2000), st.integers(-5, 1000))
def test_a_clipped_text_fits_and_states_exactly_what_is_left_out(size: int, limit: int) -> None:
    text = "".join(chr(0x4E00 + place) for place in range(size))
    shown, left_out = clip(text, limit)
    if size <= limit:
        assert (shown, left_out) == (text, 0)
        return
    mark = f"\n... {left_out} characters cut ...\n"
    head, tail = shown.split(mark)
    assert text.startswith(head) and text.endswith(tail)
    assert len(head) + left_out + len(tail) == size
    assert len(shown) <= max(limit, len(mark))


def test_clipping_twice_does_not_cut_the_line_that_states_the_cut() -> None:
    once, left_out = clip("a" * 5000, 300)
    assert clip(once, 300) == (once, 0)
    assert f" {left_out} characters cut " in once
