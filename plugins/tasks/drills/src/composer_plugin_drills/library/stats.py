"""Small functions that summarize numbers."""


def median_of(items):
    """Find the middle of sorted values."""
    items = sorted(items)
    mid = len(items) // 2
    if len(items) % 2 == 1:
        return items[mid]
    return (items[mid - 1] + items[mid]) / 2


def mode_of(items):
    """Find the smallest most frequent value."""
    best = items[0]
    for x in items[1:]:
        n = items.count(x) - items.count(best)
        if n > 0 or (n == 0 and x < best):
            best = x
    return best


def trimmed_mean(items, n):
    """Average values without the n extremes."""
    items = sorted(items)
    stop = len(items) - n
    if stop <= n:
        return 0
    return sum(items[n:stop]) // (stop - n)


def weighted_mean(items, weights):
    """Average values by their weights."""
    total = count = 0
    for i, x in enumerate(items):
        total += x * weights[i]
        count += weights[i]
    return total / count if count > 0 else 0


def list_records(items):
    """List values above all earlier ones."""
    out = items[:1]
    for x in items[1:]:
        if x > out[-1]:
            out.append(x)
    return out


def moving_mean(items, size):
    """Average each window of a size."""
    out = []
    for i in range(size - 1, len(items)):
        total = sum(items[i - size + 1 : i + 1])
        out.append(total // size)
    return out


def sample_variance(items):
    """Measure the spread of a sample."""
    n = len(items)
    if n < 2:
        return 0
    mean = sum(items) / n
    return sum((x - mean) ** 2 for x in items) / (n - 1)


def bucket_counts(items, size, n):
    """Count the values in each bucket."""
    out = [0] * n
    for x in items:
        i = min(x // size, n - 1)
        out[i] += 1
    return out


def percent_below(items, x):
    """Give the percentage of smaller values."""
    if not items:
        return 0
    count = 0
    for value in items:
        if value < x:
            count += 1
    return 100 * count // len(items)


def percentile(items, n):
    """Pick the nearest rank percentile."""
    items = sorted(items)
    rank = (n * len(items) + 99) // 100
    if rank < 1:
        rank = 1
    return items[rank - 1]


def score_rank(items, x):
    """Give the rank of a score."""
    if x not in items:
        return 0
    above = [value for value in items if value > x]
    return len(above) + 1


def smooth_three(items):
    """Average each value with its neighbours."""
    out = items[:1]
    for i in range(1, len(items) - 1):
        out.append(sum(items[i - 1 : i + 2]) // 3)
    if len(items) > 1:
        out.append(items[-1])
    return out


def concordance(left, right):
    """Count agreeing minus opposing pairs."""
    total = 0
    for i in range(1, len(left)):
        for k in range(i):
            sign = (left[i] - left[k]) * (right[i] - right[k])
            total += (sign > 0) - (sign < 0)
    return total


def list_outliers(items, n):
    """List values far from the middle."""
    middle = sorted(items)[len(items) // 2]
    lo = middle - n
    hi = middle + n
    return [x for x in items if x < lo or x > hi]


def best_streak(items, x):
    """Find the longest run of a value."""
    best = count = 0
    for value in items:
        count += 1
        if value != x:
            count = 0
        best = max(best, count)
    return best


def majority_vote(items):
    """Find a value held by over half."""
    best, count = None, 0
    for x in items:
        if count == 0:
            best = x
        count += 1 if x == best else -1
    return best if items.count(best) * 2 > len(items) else None
