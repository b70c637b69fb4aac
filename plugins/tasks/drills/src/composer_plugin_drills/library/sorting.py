"""Small functions that sort and reorder."""


def is_sorted(items):
    """Check items never decrease."""
    for i in range(len(items) - 1):
        step = items[i + 1] - items[i]
        if step < 0:
            return False
    return True


def insert_sorted(items, x):
    """Insert x into sorted items."""
    i = 0
    for n in items:
        if n <= x:
            i += 1
    out = items[:]
    out.insert(i, x)
    return out


def bubble_pass(items):
    """Carry larger items right, one pass."""
    out = items[:]
    for i in range(len(out) - 1):
        if out[i] > out[i + 1]:
            out[i], out[i + 1] = out[i + 1], out[i]
    return out


def bubble_sort(items):
    """Sort by swapping neighbours."""
    out = items[:]
    for n in range(len(out) - 1, 0, -1):
        for i in range(n):
            if out[i] > out[i + 1]:
                out[i], out[i + 1] = out[i + 1], out[i]
    return out


def sift_sort(items):
    """Sort by sifting items to the left."""
    out = items[:]
    for i in range(1, len(out)):
        for j in range(i, 0, -1):
            if out[j] < out[j - 1]:
                out[j], out[j - 1] = out[j - 1], out[j]
    return out


def count_sort(items, n):
    """Sort numbers up to n by counting."""
    counts = [0] * (n + 1)
    for x in items:
        if 0 <= x <= n:
            counts[x] += 1
    return [i for i in range(n + 1) for _ in range(counts[i])]


def sink_zeros(items):
    """Move zeros to the end."""
    out = [x for x in items if x != 0]
    count = len(items) - len(out)
    return out + [0] * count


def quick_sort(items):
    """Sort by splitting around the first."""
    if len(items) < 2:
        return items
    left = [x for x in items[1:] if x < items[0]]
    right = [x for x in items[1:] if x >= items[0]]
    return quick_sort(left) + items[:1] + quick_sort(right)


def flip_part(items, start, stop):
    """Reverse the items between two indexes."""
    if start > stop:
        start, stop = stop, start
    middle = items[start : stop + 1]
    return items[:start] + middle[::-1] + items[stop + 1 :]


def kth_smallest(items, n):
    """Find the nth smallest distinct item."""
    items = sorted(set(items))
    if n < 1 or n > len(items):
        return -1
    return items[n - 1]


def evens_first(items):
    """Put evens first, then odds backwards."""
    evens = [x for x in items if x % 2 == 0]
    odds = [x for x in items if x % 2 == 1]
    return evens + odds[::-1]


def inversions(items):
    """Count pairs that are out of order."""
    count = 0
    for i in range(len(items)):
        for x in items[i + 1 :]:
            if items[i] > x:
                count += 1
    return count


def flag_sort(items):
    """Sort zeros, ones and twos."""
    zeros = items.count(0)
    ones = items.count(1)
    twos = len(items) - zeros - ones
    return [0] * zeros + [1] * ones + [2] * twos


def heap_ordered(items):
    """Check parents never exceed children."""
    for i in range(1, len(items)):
        above = (i - 1) // 2
        if items[above] > items[i]:
            return False
    return True
