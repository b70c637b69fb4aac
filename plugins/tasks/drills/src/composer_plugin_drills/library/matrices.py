"""Small functions on matrices stored as rows."""


def band_matrix(n, size):
    """Mark cells close to the diagonal."""
    rows = [[0] * n for i in range(n)]
    for i in range(n):
        for k in range(n):
            if abs(i - k) < size:
                rows[i][k] = 1
    return rows


def both_diagonals(rows):
    """Sum both diagonals of a square."""
    n, total = len(rows), 0
    for i in range(n):
        total += rows[i][i]
        if i != n - 1 - i:
            total += rows[i][n - 1 - i]
    return total


def mat_product(left, right):
    """Multiply two matrices."""
    out = [[0] * len(right[0]) for row in left]
    for i in range(len(left)):
        for k in range(len(right[0])):
            for x in range(len(right)):
                out[i][k] += left[i][x] * right[x][k]
    return out


def apply_affine(rows, items):
    """Apply rows with a trailing offset."""
    out = []
    for row in rows:
        total = row[-1]
        for i in range(len(row) - 1):
            total += row[i] * items[i]
        out.append(total)
    return out


def det_three(rows):
    """Compute a three by three determinant."""
    total = 0
    for i in range(3):
        left, right = (i + 1) % 3, (i + 2) % 3
        minor = rows[1][left] * rows[2][right]
        minor -= rows[1][right] * rows[2][left]
        total += rows[0][i] * minor
    return total


def solve_two(left, right):
    """Solve two linear equations exactly."""
    det = left[0] * right[1] - left[1] * right[0]
    if det == 0:
        return []
    x = left[2] * right[1] - left[1] * right[2]
    y = left[0] * right[2] - left[2] * right[0]
    return [x // det, y // det]


def is_skew(rows):
    """Check for opposite mirrored cells."""
    for i in range(len(rows)):
        for k in range(i + 1):
            if rows[i][k] + rows[k][i] != 0:
                return False
    return True


def is_upper(rows):
    """Check for zeros below the diagonal."""
    for i in range(1, len(rows)):
        for k in range(i):
            if rows[i][k] != 0:
                return False
    return True


def is_identity(rows):
    """Check for ones on the diagonal only."""
    for i, row in enumerate(rows):
        for k, x in enumerate(row):
            want = 1 if i == k else 0
            if x != want:
                return False
    return True


def column_sums(rows):
    """Add up each column of a matrix."""
    if not rows:
        return []
    totals = [0] * len(rows[0])
    for row in rows:
        for i, x in enumerate(row):
            totals[i] += x
    return totals


def heaviest_row(rows):
    """Find the row with the largest sum."""
    best, where = sum(rows[0]), 0
    for i in range(1, len(rows)):
        if sum(rows[i]) > best:
            best, where = sum(rows[i]), i
    return where


def rotate_right(rows):
    """Turn a matrix a quarter clockwise."""
    if len(rows) == 0:
        return []
    last = len(rows) - 1
    out = []
    for i in range(len(rows[0])):
        out.append([rows[last - k][i] for k in range(last + 1)])
    return out


def outer_ring(rows):
    """List the border cells clockwise."""
    out = rows[0][:-1]
    out += [row[-1] for row in rows[:-1]]
    out += rows[-1][:0:-1]
    out += [row[0] for row in rows[:0:-1]]
    return out


def fill_rows(items, width):
    """Cut a list into padded rows."""
    rows = []
    for i in range(0, len(items), width):
        row = items[i : i + width]
        row += [0] * (width - len(row))
        rows.append(row)
    return rows


def drop_cross(rows, i, k):
    """Remove one row and one column."""
    if i < 0 or i >= len(rows):
        return rows
    out = []
    for row in rows[:i] + rows[i + 1 :]:
        out.append(row[:k] + row[k + 1 :])
    return out


def block_sum(rows, i, k, size):
    """Sum a square block of cells."""
    if i < 0 or k < 0:
        return 0
    total = 0
    for row in rows[i : i + size]:
        total += sum(row[k : k + size])
    return total
