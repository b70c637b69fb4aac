"""Small functions on spans with a start and stop."""


def spans_touch(left, right):
    """Check whether two spans share a point."""
    if left[0] > right[1]:
        return False
    return left[1] >= right[0]


def overlap_size(left, right):
    """Measure the shared part of two spans."""
    start = max(left[0], right[0])
    stop = min(left[1], right[1])
    return max(stop - start, 0)


def merge_spans(spans):
    """Join spans that overlap or touch."""
    out = sorted(spans)[:1]
    for start, stop in sorted(spans)[1:]:
        if start <= out[-1][1]:
            out[-1] = [out[-1][0], max(out[-1][1], stop)]
        else:
            out.append([start, stop])
    return out


def covered_points(spans):
    """Count the points covered by spans."""
    total, edge = 0, 0
    for start, stop in sorted(spans):
        if stop >= edge:
            total += stop - max(start, edge) + 1
            edge = stop + 1
    return total


def double_booked(spans, size):
    """Count slots booked more than once."""
    load = [0] * size
    for start, stop in spans:
        for i in range(start, stop + 1):
            load[i] += 1
    return sum(x > 1 for x in load)


def clip_span(span, limits):
    """Cut a span to fit in limits."""
    start = max(span[0], limits[0])
    stop = min(span[1], limits[1])
    if start > stop:
        return []
    return [start, stop]


def cut_span(span, lo, hi):
    """Remove a middle part from a span."""
    start, stop = span
    out = []
    if start < lo:
        out.append([start, min(stop, lo - 1)])
    if hi < stop:
        out.append([max(start, hi + 1), stop])
    return out


def which_span(spans, x):
    """Number the span that holds a point."""
    for i, span in enumerate(spans, 1):
        if span[0] <= x < span[1]:
            return i
    return 0


def most_meetings(spans):
    """Count meetings that fit one room."""
    count = last = 0
    for stop, start in sorted([b, a] for a, b in spans):
        if start >= last:
            count += 1
            last = stop
    return count


def split_span(start, stop, size):
    """Cut a span into pieces with lengths."""
    out = []
    for lo in range(start, stop + 1, size):
        hi = min(lo + size - 1, stop)
        out.append([lo, hi, hi - lo + 1])
    return out


def pad_spans(spans, n):
    """Widen spans, dropping the empty ones."""
    out = []
    for start, stop in spans:
        if start < stop:
            left = max(start - n, 0)
            out.append([left, stop + n])
    return out


def longest_span(spans):
    """Find the first longest span."""
    best, size = [], 0
    for start, stop in spans:
        if stop - start > size:
            size = stop - start
            best = [start, stop]
    return best


def span_gap(left, right):
    """Measure the space between two spans."""
    if left[1] < right[0]:
        return right[0] - left[1]
    if right[1] < left[0]:
        return left[0] - right[1]
    return 0


def count_clashes(spans):
    """Count the pairs of overlapping spans."""
    total = 0
    for i in range(1, len(spans)):
        start, stop = spans[i]
        for lo, hi in spans[:i]:
            if start < hi and lo < stop:
                total += 1
    return total


def number_spans(items):
    """Group numbers as start and length."""
    out = []
    for x in items:
        if out and x == out[-1][0] + out[-1][1]:
            out[-1][1] += 1
        else:
            out.append([x, 1])
    return out
