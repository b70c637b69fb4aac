"""Small functions on sets and members."""


def overlap_percent(left, right):
    """Compare two sets by shared percent."""
    both = len(set(left) | set(right))
    if both == 0:
        return 100
    shared = len(set(left) & set(right))
    return shared * 100 // both


def first_free(items):
    """Find the smallest unused positive number."""
    free = 1
    for x in sorted(items):
        if x == free:
            free += 1
    return free


def shares_enough(left, right, n):
    """Check at least n items are shared."""
    count = 0
    for x in set(left):
        if x in right:
            count += 1
    return count >= n


def subset_count(n, size):
    """Count the subsets of given size."""
    if size < 0 or size > n:
        return 0
    out = 1
    for i in range(size):
        out = out * (n - i) // (i + 1)
    return out


def few_repeats(items, n):
    """Allow at most n repeated items."""
    count = 0
    for i in range(1, len(items)):
        if items[i] in items[:i]:
            count += 1
    return count <= n


def can_reach(items, total):
    """Check some items add to total."""
    sums = [0]
    for x in items:
        more = [n + x for n in sums if n + x <= total]
        sums = sums + more
    return total in sums


def longest_streak(items):
    """Find the longest run of consecutive numbers."""
    best = count = 0
    for x in sorted(set(items)):
        count = count + 1 if x - 1 in items else 1
        if count > best:
            best = count
    return best


def count_unshared(left, right):
    """Count items in exactly one set."""
    count = len(left)
    for x in right:
        if x in left:
            count -= 1
        else:
            count += 1
    return count


def splits_range(left, right, n):
    """Check two lists split one to n."""
    if len(left) + len(right) != n:
        return False
    for x in range(1, n + 1):
        if (x in left) == (x in right):
            return False
    return True


def toggle_bit(n, i):
    """Flip one bit of n."""
    size = 2**i
    if n // size % 2 == 1:
        return n - size
    return n + size


def unique_sums(items):
    """List distinct sums of two items."""
    out = []
    for i in range(len(items)):
        for x in items[i + 1 :]:
            if items[i] + x not in out:
                out.append(items[i] + x)
    return out


def keep_apart(items, gap):
    """Keep items at least gap apart."""
    items = sorted(items)
    out = items[:1]
    for x in items[1:]:
        if x - out[-1] >= gap:
            out.append(x)
    return out
