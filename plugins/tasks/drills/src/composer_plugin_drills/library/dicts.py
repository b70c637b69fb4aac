"""Small functions on dictionaries."""


def repeated(items):
    """Count the items seen more than once."""
    out = {}
    for x in items:
        n = out.get(x, 0)
        out[x] = n + 1
    return {x: n for x, n in out.items() if n > 1}


def longest_by_initial(words):
    """Keep the longest word per initial."""
    out = {}
    for word in words:
        if len(word) > 0:
            key = word[0].lower()
            if len(word) > len(out.get(key, "")):
                out[key] = word
    return out


def merge_sums(left, right):
    """Add counts, skipping new empty ones."""
    out = dict(left)
    for key, n in right.items():
        if key in out:
            out[key] += n
        elif n > 0:
            out[key] = n
    return out


def unique_key(items, key):
    """Add a number to a taken key."""
    if key not in items:
        return key
    for i in range(2, len(items) + 2):
        if f"{key}{i}" not in items:
            return f"{key}{i}"
    return key


def bump_count(counts, key, hi):
    """Raise a count, never above hi."""
    out = dict(counts)
    n = out.get(key, 0)
    if n < hi:
        out[key] = n + 1
    return out


def take_from(counts, key, n):
    """Take n of a key when possible."""
    out = dict(counts)
    if n > 0 and out.get(key, 0) >= n:
        out[key] -= n
        if out[key] == 0:
            del out[key]
    return out


def neighbour_counts(items):
    """Count each pair of neighbours."""
    out = {}
    for i in range(len(items) - 1):
        pair = (items[i], items[i + 1])
        out[pair] = out.get(pair, 0) + 1
    return out


def slot_counts(items, size):
    """Count items per numbered slot."""
    out = {}
    for x in items:
        if x < 0:
            continue
        key = x // size + 1
        out[key] = out.get(key, 0) + 1
    return out


def count_changes(left, right):
    """Count keys removed or changed."""
    count = 0
    for key in left:
        if key not in right:
            count += 1
        elif left[key] != right[key]:
            count += 1
    return count


def rank_scores(scores):
    """Map each key to its rank."""
    out = {}
    for key, x in scores.items():
        out[key] = 1
        for n in scores.values():
            if n > x:
                out[key] += 1
    return out


def lead_margin(scores):
    """Measure the lead over second place."""
    order = sorted(scores.values())
    if len(order) < 2:
        return 0
    return order[-1] - order[-2]


def drop_rare(counts, n):
    """Move rare counts into one other."""
    out = {"other": 0}
    for key, count in counts.items():
        if count < n:
            out["other"] += count
        else:
            out[key] = count
    return out if out["other"] > 0 else counts
