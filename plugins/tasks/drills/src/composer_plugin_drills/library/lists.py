"""Small functions on lists."""


def every_nth(items, n):
    """Keep each nth item."""
    if n < 1:
        return []
    out = []
    for i, x in enumerate(items, 1):
        if i % n == 0:
            out.append(x)
    return out


def chunk(items, size):
    """Split items into lists of size."""
    if size < 1:
        return []
    out = []
    for i in range(0, len(items), size):
        out.append(items[i : i + size])
    return out


def runner_up(items):
    """Find the second largest distinct item."""
    best = max(items)
    rest = [x for x in items if x < best]
    if len(rest) == 0:
        return -1
    return max(rest)


def pair_up(items):
    """Pair neighbours, repeating a lone last."""
    if len(items) % 2 == 1:
        items = items + items[-1:]
    out = []
    for i in range(1, len(items), 2):
        out.append((items[i - 1], items[i]))
    return out


def middle_items(items):
    """Return the middle one or two items."""
    half = len(items) // 2
    if len(items) % 2 == 1:
        return items[half : half + 1]
    return items[half - 1 : half + 1]


def swap_ends(items):
    """Swap the first and last items."""
    if len(items) < 2:
        return items
    middle = items[1:-1]
    return items[-1:] + middle + items[:1]


def has_majority(items, x):
    """Check x fills over half the list."""
    count = 0
    for item in items:
        if item == x:
            count += 1
    return count * 2 > len(items)


def drop_at(items, i):
    """Remove the item at index i."""
    if i < 0:
        i += len(items)
    return items[:i] + items[i + 1 :]


def fill_zeros(items):
    """Replace zeros by the previous item."""
    out = items[:]
    for i in range(1, len(out)):
        if out[i] == 0:
            out[i] = out[i - 1]
    return out


def fold_sums(items):
    """Add items from both ends inward."""
    out = []
    for i in range((len(items) + 1) // 2):
        j = len(items) - 1 - i
        out.append(items[i] + items[j] if i < j else items[i])
    return out


def swap_pairs(items):
    """Swap each two neighbouring items."""
    out = items[:]
    for i in range(0, len(out) - 1, 2):
        out[i] = items[i + 1]
        out[i + 1] = items[i]
    return out
