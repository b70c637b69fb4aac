"""Small functions that lay out plain text."""


def center_line(text, width):
    """Center text within a width."""
    space = width - len(text)
    if space < 1:
        return text
    left = space // 2
    return " " * left + text + " " * (space - left)


def wrap_words(text, width):
    """Wrap words into lines of a width."""
    out = text.split()[:1]
    for word in text.split()[1:]:
        if len(out[-1]) + 1 + len(word) <= width:
            out[-1] += " " + word
        else:
            out.append(word)
    return out


def hang_indent(lines, width):
    """Indent every line after the first."""
    out = lines[:1]
    for i in range(1, len(lines)):
        if lines[i] != "":
            out.append(" " * width + lines[i])
        else:
            out.append("")
    return out


def clip_text(text, width):
    """Cut text and mark the cut."""
    if len(text) <= width:
        return text
    if width < 4:
        return text[:width]
    return text[: width - 3] + "..."


def clip_middle(text, width):
    """Shorten text in the middle."""
    if len(text) <= width or width < 3:
        return text
    left = (width - 1) // 2
    right = width - 2 - left
    return text[:left] + ".." + text[len(text) - right :]


def draw_ruler(width, step):
    """Draw a ruler with regular marks."""
    out = ""
    for i in range(1, width + 1):
        if i % step == 0:
            out += "|"
        else:
            out += "-"
    return out


def table_row(cells, width):
    """Join cells padded to one width."""
    out = ""
    for i in range(len(cells)):
        space = width - len(cells[i]) + 1
        if i > 0:
            out += "| "
        out += cells[i] + " " * space
    return out


def column_widths(rows):
    """Find padded widths, three at least."""
    widths = [3] * len(rows[0])
    for row in rows:
        for i in range(len(widths)):
            if i < len(row) and len(row[i]) + 2 > widths[i]:
                widths[i] = len(row[i]) + 2
    return widths


def pad_number(n, width):
    """Pad a number with leading zeros."""
    text = str(abs(n))
    space = width - len(text)
    if n < 0:
        return "-" + "0" * (space - 1) + text
    return "0" * space + text


def page_label(i, size, total):
    """Describe one page of a list."""
    start = i * size + 1
    stop = min(start + size - 1, total)
    if start > total:
        return "empty"
    return f"{start}-{stop} of {total}"


def justify_words(words, width):
    """Spread words over a full width."""
    gaps = len(words) - 1
    space = width - sum(len(word) for word in words)
    out = words[0]
    for i in range(gaps):
        size = space // gaps + (1 if i < space % gaps else 0)
        out += " " * size + words[i + 1]
    return out


def bullet_line(text, level):
    """Write a bullet at a nesting level."""
    if level < 0:
        level = 0
    mark = "*" if level % 2 == 0 else "-"
    return " " * (2 * level) + mark + " " + text


def progress_bar(count, total, width):
    """Draw a bar for finished work."""
    if total <= 0:
        return "[" + "." * width + "]"
    filled = min(count * width // total, width)
    return "[" + "#" * filled + "." * (width - filled) + "]"


def expand_tabs(text, size):
    """Replace tabs up to the next stop."""
    out = ""
    for c in text:
        if c != "\t":
            out += c
        elif size > 0:
            out += " " * (size - len(out) % size)
    return out


def common_margin(lines):
    """Find the smallest shared indent."""
    best = -1
    for line in lines:
        size = len(line) - len(line.lstrip())
        if line.strip() and (best < 0 or size < best):
            best = size
    return max(best, 0)
