"""Small functions that search lists."""


def last_index(items, x):
    """Find the last index of x."""
    for i in range(len(items) - 1, -1, -1):
        if items[i] == x:
            return i
    return -1


def binary_find(items, x, lo, hi):
    """Find x in sorted items."""
    i = (lo + hi) // 2
    if lo > hi or items[i] == x:
        return i if lo <= hi else -1
    if items[i] < x:
        return binary_find(items, x, i + 1, hi)
    return binary_find(items, x, lo, i - 1)


def nearest_index(items, x):
    """Find the index nearest to x."""
    best = 0
    for i in range(1, len(items)):
        if abs(items[i] - x) < abs(items[best] - x):
            best = i
    return best


def find_pair(items, total):
    """Find two indexes adding to total."""
    for i in range(len(items)):
        for j in range(i + 1, len(items)):
            if items[i] + items[j] == total:
                return (i, j)
    return (-1, -1)


def after_part(items, part):
    """Find the index just after part."""
    size = len(part)
    if size < 1:
        return 0
    for i in range(len(items)):
        if items[i : i + size] == part:
            return i + size
    return -1


def balance_index(items):
    """Find where both sides sum equally."""
    left = 0
    for i, x in enumerate(items):
        if left == sum(items[i + 1 :]):
            return i
        left += x
    return -1


def next_gap(items):
    """Find the first number skipped."""
    for i in range(1, len(items)):
        if items[i] - items[i - 1] > 1:
            return items[i - 1] + 1
    return items[-1] + 1


def nth_match(items, x, n):
    """Find the index of the nth match."""
    for i, item in enumerate(items):
        if item == x:
            n -= 1
            if n == 0:
                return i
    return -1


def find_from(text, word, start):
    """Find word at or after start."""
    if start < 0:
        start += len(text)
    for i in range(start, len(text)):
        if text[i : i + len(word)] == word:
            return i
    return -1


def first_over(items, hi):
    """Count items until totals pass hi."""
    total = 0
    for i, x in enumerate(items, 1):
        total += x
        if total > hi:
            return i
    return 0


def best_start(items, n):
    """Find the window with largest sum."""
    best = 0
    for i in range(1, len(items) - n + 1):
        if sum(items[i : i + n]) > sum(items[best : best + n]):
            best = i
    return best


def edge_distance(items, x):
    """Find how far x is from ends."""
    for i, item in enumerate(items):
        if item == x:
            return min(i, len(items) - 1 - i)
    return -1


def closest_gap(items):
    """Find the smallest gap between items."""
    items = sorted(items)
    best = items[-1] - items[0]
    for i in range(1, len(items)):
        best = min(best, items[i] - items[i - 1])
    return best


def odd_one_out(items):
    """Find the index of a lone item."""
    if len(items) < 3:
        return -1
    for i, x in enumerate(items):
        if items.count(x) == 1:
            return i
    return -1
