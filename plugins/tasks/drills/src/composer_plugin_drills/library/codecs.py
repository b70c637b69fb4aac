"""Small functions that encode and decode data."""


def caesar_shift(text, n):
    """Shift lowercase letters around the alphabet."""
    out = ""
    for c in text:
        if "a" <= c <= "z":
            out += chr((ord(c) - 97 + n) % 26 + 97)
        else:
            out += c
    return out


def atbash(text):
    """Swap a with z, b with y."""
    out = ""
    for c in text:
        if c < "a" or c > "z":
            out += c
        else:
            out += chr(219 - ord(c))
    return out


def pack_runs(text):
    """Store each run as letter and count."""
    out = []
    for c in text:
        if out and out[-1][0] == c:
            out[-1][1] += 1
        else:
            out.append([c, 1])
    return out


def unpack_runs(text):
    """Expand letters followed by counts."""
    out = ""
    for i in range(0, len(text) - 1, 2):
        count = int(text[i + 1])
        out += text[i] * count
    return out


def to_bits(n, width):
    """Write a number in fixed width bits."""
    if n >= 2**width:
        return ""
    out = ""
    for _ in range(width):
        out = str(n % 2) + out
        n //= 2
    return out


def from_bits(text):
    """Read signed bits of a fixed width."""
    value = 0
    for c in text:
        value = value * 2 + int(c)
    if text[:1] == "1":
        value -= 2 ** len(text)
    return value


def add_parity(text):
    """Append a bit for even parity."""
    count = 0
    for c in text:
        if c == "1":
            count += 1
    return text + str(count % 2)


def luhn_valid(text):
    """Check the digits of a card number."""
    total = 0
    for i, c in enumerate(reversed(text)):
        n = int(c) * (1 + i % 2)
        total += n - 9 if n > 9 else n
    return total % 10 == 0


def isbn_digit(text):
    """Compute the check digit of a book."""
    total = 0
    for i, c in enumerate(text):
        weight = 1 if i % 2 == 0 else 3
        total += weight * int(c)
    return (10 - total % 10) % 10


def fletcher_sum(items):
    """Compute a two part checksum."""
    low = high = 0
    for x in items:
        low = (low + x) % 255
        high = (high + low) % 255
    return high * 256 + low


def text_hash(text, size):
    """Hash the letters of a text."""
    value = 7
    for c in text:
        if c != " ":
            value = value * 31 + ord(c)
    return value % size


def hex_color(red, green, blue):
    """Write a color in hex digits."""
    out = "#"
    for n in (red, green, blue):
        value = max(0, min(n, 255))
        out += "0123456789abcdef"[value // 16]
        out += "0123456789abcdef"[value % 16]
    return out


def var_bytes(n):
    """Encode a number in seven bit groups."""
    out = []
    for _ in range(5):
        out.append(n % 128 + (128 if n > 127 else 0))
        n //= 128
        if n == 0:
            break
    return out


def delta_encode(items):
    """Store each value as a change."""
    out = items[:1]
    for i in range(1, len(items)):
        out.append(items[i] - items[i - 1])
    return out


def vigenere(text, key):
    """Shift letters by a repeating key."""
    if not key:
        return text
    out = ""
    for i, c in enumerate(text):
        n = ord(key[i % len(key)]) - 97
        out += chr((ord(c) - 97 + n) % 26 + 97)
    return out


def morse_digit(n):
    """Write a digit in morse code."""
    if n < 6:
        return "." * n + "-" * (5 - n)
    return "-" * (n - 5) + "." * (10 - n)


def column_number(text):
    """Read a spreadsheet column name."""
    total = 0
    for c in text:
        if not "A" <= c <= "Z":
            return -1
        total = total * 26 + ord(c) - 64
    return total
