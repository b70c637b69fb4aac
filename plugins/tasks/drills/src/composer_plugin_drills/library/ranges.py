"""Small functions on ranges of whole numbers."""


def range_len(start, stop, step):
    """Count steps from start before stop."""
    if step < 1 or stop <= start:
        return 0
    return (stop - start + step - 1) // step


def evens_between(lo, hi):
    """List even numbers from lo to hi."""
    if lo % 2 == 1:
        lo += 1
    return list(range(lo, hi + 1, 2))


def count_multiples(lo, hi, n):
    """Count multiples of n within bounds."""
    if n < 1:
        return 0
    count = 0
    for x in range(lo, hi + 1):
        if x % n == 0:
            count += 1
    return count


def bounce_index(i, n):
    """Bounce index i between both ends."""
    span = 2 * n - 2
    i = i % span
    if i >= n:
        i = span - i
    return i


def page_bounds(page, size, total):
    """Find start and stop of a page."""
    start = (page - 1) * size
    if start < 0 or start >= total:
        return (0, 0)
    return (start, min(start + size, total))


def split_evenly(n, parts):
    """Split n into nearly equal parts."""
    out = []
    for i in range(parts, 0, -1):
        size = (n + i - 1) // i
        out.append(size)
        n -= size
    return out


def count_down(n, step):
    """Count down from n to zero."""
    if step < 1:
        return []
    out = list(range(n, 0, -step))
    out.append(0)
    return out


def zigzag(lo, hi):
    """Count up to hi, then back."""
    up = list(range(lo, hi + 1))
    down = list(range(hi, lo - 1, -1))
    return up + down[1:]


def nearest_edge(x, lo, hi):
    """Pick the bound nearest to x."""
    left = abs(x - lo)
    right = abs(hi - x)
    if left <= right:
        return lo
    return hi


def cycle_add(x, step, lo, hi):
    """Add step, wrapping past hi to lo."""
    x += step
    if x > hi:
        x -= hi - lo + 1
    return x


def sum_range(lo, hi):
    """Add the numbers from lo to hi."""
    if lo > hi:
        return 0
    return (lo + hi) * (hi - lo + 1) // 2


def fizz_word(n):
    """Name n by factors three and five."""
    out = ""
    if n % 3 == 0:
        out += "fizz"
    if n % 5 == 0:
        out += "buzz"
    return out or str(n)


def ticks(lo, hi, step):
    """List multiples of step within bounds."""
    first = lo - lo % step
    if first < lo:
        first += step
    return list(range(first, hi + 1, step))
