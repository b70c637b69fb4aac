"""Small functions on grids and their cells."""


def in_grid(x, y, width, height):
    """Check that a cell is inside."""
    if x < 0 or y < 0:
        return False
    return x < width and y < height


def near_cells(x, y, size):
    """List side neighbours inside a square."""
    out = []
    for i, k in ((0, -1), (1, 0), (0, 1), (-1, 0)):
        if 0 <= x + i < size and 0 <= y + k < size:
            out.append([x + i, y + k])
    return out


def count_near(grid, x, y):
    """Count marked cells around one cell."""
    total = 0
    for row in grid[max(y - 1, 0) : y + 2]:
        total += row[max(x - 1, 0) : x + 2].count("#")
    if grid[y][x] == "#":
        total -= 1
    return total


def life_rule(alive, count):
    """Decide whether a life cell lives on."""
    if count == 3:
        return True
    return alive and count == 2


def walk_path(moves):
    """Follow moves on a grid from zero."""
    x = y = 0
    for c in moves:
        if c in "LR":
            x += 1 if c == "R" else -1
        elif c in "UD":
            y += 1 if c == "D" else -1
    return [x, y]


def knight_jump(x, y, i, k):
    """Check a knight move between cells."""
    width = abs(x - i)
    height = abs(y - k)
    if width == 0 or height == 0:
        return False
    return width + height == 3


def queen_attack(x, y, i, k):
    """Check whether a queen hits a cell."""
    if x == i and y == k:
        return False
    if x == i or y == k:
        return True
    return abs(x - i) == abs(y - k)


def snake_index(x, y, width):
    """Number cells along a snaking path."""
    if y % 2 == 1:
        x = width - 1 - x
    return y * width + x


def snake_cell(i, width):
    """Find the cell of a snaking index."""
    y = i // width
    x = i - y * width
    if y % 2 == 1:
        x = width - x - 1
    return [x, y]


def find_mark(grid, mark):
    """Locate a mark, counting from one."""
    for y, row in enumerate(grid, 1):
        x = row.find(mark) + 1
        if x > 0:
            return [x, y]
    return [0, 0]


def free_run(row, x):
    """Count open cells right of one."""
    total = 0
    for c in row[x + 1 :]:
        if c == "#":
            break
        total += 1
    return total


def count_paths(width, height):
    """Count the right and down paths."""
    row = [1] * width
    for _ in range(1, height):
        for i in range(1, width):
            row[i] += row[i - 1]
    return row[-1]


def falling_path(rows):
    """Find the cheapest path going down."""
    best = rows[0]
    for row in rows[1:]:
        out = []
        for i, x in enumerate(row):
            out.append(x + min(best[max(i - 1, 0) : i + 2]))
        best = out
    return min(best)


def toggle_cross(rows, x, y):
    """Flip a cell and its side neighbours."""
    out = [row[:] for row in rows]
    for i in range(len(rows)):
        for k in range(len(rows[0])):
            if abs(i - y) + abs(k - x) <= 1:
                out[i][k] = 1 - out[i][k]
    return out


def frame_rows(width, height):
    """Draw an empty frame in text."""
    out = []
    for y in range(height):
        if y in (0, height - 1):
            out.append("#" * width)
        else:
            out.append("#" + "." * (width - 2) + "#")
    return out


def ring_distance(x, y, width):
    """Measure the steps around a ring."""
    size = abs(x - y) % width
    if size * 2 > width:
        size = width - size
    return size


def turn_heading(heading, moves):
    """Turn a compass heading left or right."""
    i = "NESW".find(heading)
    for c in moves:
        if c == "R":
            i += 1
        elif c == "L":
            i -= 1
    return "NESW"[i % 4]
