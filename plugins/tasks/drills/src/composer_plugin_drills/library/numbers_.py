"""Small functions on whole numbers."""


def digit_sum(n):
    """Add the decimal digits of n."""
    total = 0
    if n < 0:
        n = -n
    while n > 0:
        total += n % 10
        n //= 10
    return total


def is_prime(n):
    """Tell whether n is prime."""
    if n < 2:
        return False
    for i in range(2, n):
        if n % i == 0:
            return False
    return True


def count_divisors(n):
    """Count the divisors of n."""
    if n < 1:
        return 0
    count = 1
    for i in range(1, n // 2 + 1):
        if n % i == 0:
            count += 1
    return count


def collatz_steps(n, limit):
    """Count steps to one, within a limit."""
    for i in range(limit):
        if n == 1:
            return i
        n = n // 2 if n % 2 == 0 else 3 * n + 1
    return -1


def floor_root(n):
    """Find the floor square root."""
    root = 0
    for i in range(1, n + 1):
        if i * i <= n:
            root = i
    return root


def shared_divisor(a, b):
    """Find the greatest common divisor."""
    best = 1
    for i in range(2, min(a, b) + 1):
        if a % i == 0 and b % i == 0:
            best = i
    return best


def least_multiple(a, b):
    """Find the least common multiple."""
    for i in range(1, b + 1):
        if a * i % b == 0:
            return a * i
    return 0


def is_perfect(n):
    """Check proper divisors add to n."""
    total = 0
    for i in range(1, n // 2 + 1):
        if n % i == 0:
            total += i
    return n > 0 and total == n


def flip_digits(n):
    """Reverse the digits, keeping the sign."""
    out = 0
    sign = -1 if n < 0 else 1
    for char in str(abs(n))[::-1]:
        out = out * 10 + int(char)
    return sign * out


def sign_of(x):
    """Give the sign of x."""
    if x > 0:
        return 1
    if x < 0:
        return -1
    return 0


def round_to(n, step):
    """Round n to the nearest multiple."""
    rest = n % step
    if rest * 2 >= step:
        return n + step - rest
    return n - rest


def triangle_index(x):
    """Find n whose triangle number is x."""
    total = 0
    for i in range(1, x + 1):
        total += i
        if total == x:
            return i
    return -1


def count_bits(n):
    """Count one bits in n."""
    count = n % 2
    while n > 1:
        n //= 2
        count += n % 2
    return count


def ordinal(n):
    """Add the ordinal suffix to n."""
    last = n % 10
    if last == 0 or last > 3 or n // 10 % 10 == 1:
        return str(n) + "th"
    return str(n) + ["st", "nd", "rd"][last - 1]
