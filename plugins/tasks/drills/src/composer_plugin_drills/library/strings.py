"""Small functions on strings."""


def is_palindrome(text):
    """Check text reads the same backwards."""
    for i in range(len(text) // 2):
        j = len(text) - 1 - i
        if text[i] != text[j]:
            return False
    return True


def count_sub(text, word):
    """Count overlapping matches of word."""
    count = 0
    size = len(word)
    for i in range(len(text) - size + 1):
        if text[i : i + size] == word:
            count += 1
    return count


def shared_prefix(left, right):
    """Find the common prefix."""
    size = 0
    for i in range(min(len(left), len(right))):
        if left[i] == right[i] and size == i:
            size += 1
    return left[:size]


def mask_middle(text):
    """Hide all but the end characters."""
    size = len(text) - 2
    if size < 1:
        return text
    return text[0] + "*" * size + text[-1]


def alternate_case(text):
    """Alternate upper and lower case."""
    out = ""
    for i, char in enumerate(text):
        if i % 2 == 0:
            out += char.upper()
        else:
            out += char.lower()
    return out


def squeeze(text):
    """Collapse runs of equal characters."""
    out = text[:1]
    for char in text[1:]:
        if char != out[-1]:
            out += char
    return out


def strip_pair(text, left, right):
    """Remove one enclosing pair of marks."""
    if len(text) < 2:
        return text
    if text[0] == left and text[-1] == right:
        return text[1:-1]
    return text


def char_at(text, i, other):
    """Fetch a character or a fallback."""
    if i < 0:
        i += len(text)
    if i < 0 or i >= len(text):
        return other
    return text[i]


def has_triple(text):
    """Find three equal characters running."""
    count = 1
    for i in range(1, len(text)):
        count = count + 1 if text[i] == text[i - 1] else 1
        if count == 3:
            return True
    return False


def snake_case(text):
    """Turn a camel name into snake."""
    out = ""
    for i, char in enumerate(text):
        if char.isupper() and i > 0:
            out += "_"
        out += char.lower()
    return out


def match_mask(text, mask):
    """Match text where ? fits anything."""
    count = 0
    for i, char in enumerate(text[: len(mask)]):
        if mask[i] in ("?", char):
            count += 1
    return count == len(text) == len(mask)


def hamming_gap(left, right):
    """Count places where texts differ."""
    count = abs(len(left) - len(right))
    for i in range(min(len(left), len(right))):
        if left[i] != right[i]:
            count += 1
    return count


def is_subsequence(word, text):
    """Check word's letters occur in order."""
    i = 0
    for char in text:
        if i < len(word) and char == word[i]:
            i += 1
    return i == len(word)
