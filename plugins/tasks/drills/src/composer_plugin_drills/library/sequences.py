"""Small functions on sequences of numbers."""


def nonzero_steps(items):
    """List changes between neighbours."""
    out = []
    for i in range(len(items) - 1):
        step = items[i + 1] - items[i]
        if step != 0:
            out.append(step)
    return out


def running_max(items):
    """List the largest item so far."""
    out = items[:1]
    for x in items[1:]:
        out.append(max(x, out[-1]))
    return out


def running_reset(items, hi):
    """Running totals, restarting above hi."""
    out = [0]
    for x in items:
        total = out[-1] + x
        if total > hi:
            total = 0
        out.append(total)
    return out[1:]


def fib_list(n):
    """List the first n Fibonacci numbers."""
    out = [0, 1]
    for i in range(2, n):
        out.append(out[i - 1] + out[i - 2])
    return out[:n]


def is_arithmetic(items):
    """Check that all steps are equal."""
    if len(items) < 2:
        return True
    step = items[1] - items[0]
    for i in range(2, len(items)):
        if items[i] - items[i - 1] != step:
            return False
    return True


def longest_rise(items):
    """Find the longest rising run."""
    count = 1
    best = min(len(items), 1)
    for i in range(1, len(items)):
        count = count + 1 if items[i] > items[i - 1] else 1
        best = max(best, count)
    return best


def local_peaks(items):
    """List indexes above both neighbours."""
    out = []
    for i in range(1, len(items) - 1):
        left = items[i - 1]
        right = items[i + 1]
        if left < items[i] > right:
            out.append(i)
    return out


def window_sums(items, n):
    """Sum each window of n items."""
    if n < 1:
        return []
    out = []
    for i in range(len(items) - n + 1):
        out.append(sum(items[i : i + n]))
    return out


def sign_changes(items):
    """Count sign flips between neighbours."""
    count = 0
    for i in range(1, len(items)):
        if items[i] * items[i - 1] < 0:
            count += 1
    return count


def count_runs(items):
    """Count runs of equal items."""
    if not items:
        return 0
    count = 1
    for i in range(1, len(items)):
        if items[i] != items[i - 1]:
            count += 1
    return count


def alternating_sum(items):
    """Add and subtract items in turn."""
    total = 0
    for i, x in enumerate(items):
        if i % 2 == 0:
            total += x
        else:
            total -= x
    return total


def zigzags(items):
    """Check that steps alternate in sign."""
    for i in range(1, len(items) - 1):
        left = items[i] - items[i - 1]
        right = items[i + 1] - items[i]
        if left * right >= 0:
            return False
    return True


def first_drop(items):
    """Find the first index that decreases."""
    for i in range(1, len(items)):
        if items[i] < items[i - 1]:
            return i
    return -1
