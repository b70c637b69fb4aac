"""Small functions on words."""


def title_words(text):
    """Capitalize the first and long words."""
    out = []
    for i, word in enumerate(text.split()):
        first = word[0]
        if i == 0 or len(word) > 3:
            first = first.upper()
        out.append(first + word[1:])
    return " ".join(out)


def longest_word_at(words):
    """Find the index of the longest word."""
    best = 0
    for i in range(1, len(words)):
        if len(words[i]) > len(words[best]):
            best = i
    return best


def acronym(text):
    """Join initials of the longer words."""
    out = ""
    for word in text.split():
        if len(word) > 2 or out == "":
            out += word[0].upper()
    return out if len(out) > 1 else text


def plural(word):
    """Form the regular plural."""
    if word[-1] in "sxz" or word[-2:] in ("ch", "sh"):
        return word + "es"
    if word[-1] == "y" and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def past_tense(word):
    """Form the regular past tense."""
    if word[-1] == "e":
        return word + "d"
    if word[-1] == "y" and word[-2] not in "aeiou":
        return word[:-1] + "ied"
    return word + "ed"


def ing_form(word):
    """Add ing to a verb."""
    if word[-2:] == "ie":
        return word[:-2] + "ying"
    if word[-1] == "e" and word[-2] != "e":
        return word[:-1] + "ing"
    return word + "ing"


def is_anagram(left, right):
    """Check both words use equal letters."""
    for char in left:
        i = right.find(char)
        if i < 0:
            return False
        right = right[:i] + right[i + 1 :]
    return right == ""


def rhymes(left, right):
    """Check different words end alike."""
    if left == right or len(left) < 3:
        return False
    end = left[-2:]
    return right[-2:] == end


def letter_score(word):
    """Score letters, doubling long words."""
    total = 0
    for char in word.lower():
        if "a" <= char <= "z":
            total += ord(char) - 96
    if len(word) > 6:
        total *= 2
    return total


def doubled_word(text):
    """Find the index of a doubled word."""
    words = text.lower().split()
    for i in range(1, len(words)):
        if words[i] == words[i - 1]:
            return i
    return -1


def syllables(word):
    """Count groups of vowels."""
    count, last = 0, False
    for char in word:
        vowel = char in "aeiouy"
        if vowel and not last:
            count += 1
        last = vowel
    return max(count, 1)


def with_article(word):
    """Put a or an before word."""
    if word[0] in "aeiou" and word[:3] != "uni":
        return "an " + word
    return "a " + word


def join_words(words):
    """Join words with commas and and."""
    if len(words) < 2:
        return "".join(words)
    head = ", ".join(words[:-1])
    return head + " and " + words[-1]
