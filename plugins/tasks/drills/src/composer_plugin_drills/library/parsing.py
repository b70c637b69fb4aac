"""Small functions that read structured text."""


def leading_int(text):
    """Read the number that starts a text."""
    stop = 0
    for c in text:
        if not "0" <= c <= "9":
            break
        stop += 1
    return int(text[:stop]) if stop > 0 else 0


def parse_flag(text):
    """Split a command line flag."""
    if text[:2] != "--":
        return ["", text]
    i = text.find("=")
    if i < 2:
        return [text[2:], ""]
    return [text[2:i], text[i + 1 :]]


def is_balanced(text):
    """Check that parentheses match."""
    depth = 0
    for c in text:
        depth += (c == "(") - (c == ")")
        if depth < 0:
            return False
    return depth == 0


def nest_depth(text):
    """Find the deepest bracket nesting."""
    best, depth = 0, 0
    for c in text:
        if c in "[]":
            depth += 1 if c == "[" else -1
        best = max(best, depth)
    return best


def split_top(text):
    """Split at commas outside parentheses."""
    out, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            out.append(text[start:i])
            start = i + 1
    return [*out, text[start:]]


def parse_span(text):
    """Expand a span such as 3-6."""
    parts = text.split("-")
    start = int(parts[0])
    if len(parts) == 1:
        return [start]
    return list(range(start, int(parts[1]) + 1))


def read_base(text, base):
    """Read digits in a small base."""
    value = 0
    for c in text:
        digit = "0123456789abcdef".find(c)
        if digit < 0 or digit >= base:
            return -1
        value = value * base + digit
    return value


def eval_sum(text):
    """Evaluate digits joined by signs."""
    total, sign = 0, 1
    for c in text:
        if c in "+-":
            sign = 1 if c == "+" else -1
        elif c != " ":
            total += sign * int(c)
    return total


def version_key(text):
    """Turn a version into three numbers."""
    if text[:1] == "v":
        text = text[1:]
    out = []
    for part in text.split(".")[:3]:
        out.append(int(part))
    return out + [0] * (3 - len(out))


def unquote_text(text):
    """Drop one pair of matching quotes."""
    if len(text) < 2 or text[0] != text[-1]:
        return text
    if text[0] in ("'", '"'):
        return text[1:-1]
    return text


def strip_comment(line):
    """Drop a comment outside of quotes."""
    quoted = False
    for i in range(len(line)):
        if line[i] == "'":
            quoted = not quoted
        if line[i] == "#" and not quoted:
            return line[:i].rstrip()
    return line


def count_cells(line):
    """Count cells of a quoted table line."""
    total, quoted = 1, False
    for c in line:
        if c == '"':
            quoted = not quoted
        elif c == "," and not quoted:
            total += 1
    return total


def is_decimal(text):
    """Check for a plain decimal number."""
    if text[:1] in ("+", "-"):
        text = text[1:]
    left, mark, right = text.partition(".")
    if mark == ".":
        return left.isdigit() and right.isdigit()
    return left.isdigit()


def valid_name(text):
    """Check a simple variable name."""
    if text == "" or text[0].isdigit():
        return False
    for c in text:
        if not c.isalnum() and c != "_":
            return False
    return True


def parse_minutes(text):
    """Read a duration such as 2h15m."""
    total = 0
    i = text.find("h")
    if i > 0:
        total = int(text[:i]) * 60
    if text[-1] == "m":
        total += int(text[i + 1 : -1])
    return total
