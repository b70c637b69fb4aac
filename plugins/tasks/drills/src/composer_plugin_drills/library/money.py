"""Small functions on amounts of money in cents."""


def money_text(cents):
    """Write cents as a dollar amount."""
    sign = "-" if cents < 0 else ""
    whole = abs(cents) // 100
    rest = abs(cents) % 100
    return f"{sign}${whole}.{rest:02d}"


def parse_cents(text):
    """Read a dollar amount as cents."""
    whole, mark, rest = text.partition(".")
    cents = int(whole) * 100
    if mark != "":
        cents += int((rest + "00")[:2])
    return cents


def greedy_change(amount, coins):
    """Pay with the largest coins first."""
    out = []
    for coin in sorted(coins)[::-1]:
        count = amount // coin
        out += [coin] * count
        amount -= coin * count
    return out if amount == 0 else []


def coin_ways(amount, coins):
    """Count the ways to pay an amount."""
    ways = [1] + [0] * amount
    for coin in coins:
        for i in range(coin, amount + 1):
            ways[i] += ways[i - coin]
    return ways[amount]


def fewest_coins(amount, coins):
    """Find the fewest coins for an amount."""
    best = [0]
    for i in range(1, amount + 1):
        near = [best[i - coin] for coin in coins if coin <= i]
        best.append(min(near, default=amount) + 1)
    return best[-1] if best[-1] <= amount else -1


def add_tax(cents, rate):
    """Add a percentage tax, rounded half up."""
    if rate < 1:
        return cents
    tax = (cents * rate + 50) // 100
    return cents + tax


def split_bill(total, n):
    """Share cents as evenly as possible."""
    base = total // n
    extra = total - base * n
    out = []
    for i in range(n):
        out.append(base + 1 if i >= n - extra else base)
    return out


def bulk_price(price, count):
    """Discount an order of many pieces."""
    total = price * count
    if count >= 100:
        total -= total // 5
    elif count >= 10:
        total -= total // 10
    return total


def bracket_tax(income):
    """Tax an income by rising brackets."""
    tax = income // 100
    for start in (1000, 5000, 20000):
        if income > start:
            tax += (income - start) // 10
    return tax


def years_to_goal(cents, rate, goal):
    """Count years until savings reach a goal."""
    for year in range(100):
        if cents >= goal:
            return year
        cents += cents * rate // 100
    return -1


def loan_left(total, rate, pay, n):
    """Find the debt after some payments."""
    for _ in range(n):
        total += total * rate // 100
        total -= pay
        if total <= 0:
            return 0
    return total


def to_currency(cents, rate):
    """Convert cents at a rate in thousandths."""
    value = abs(cents) * rate
    rest = value % 1000
    value //= 1000
    if rest >= 500:
        value += 1
    return -value if cents < 0 else value


def round_cash(cents):
    """Round cents to the nearest five."""
    rest = cents % 5
    if rest < 3:
        return cents - rest
    return cents + 5 - rest


def comma_groups(n):
    """Write a number with thousands commas."""
    text, out = str(abs(n)), ""
    for i, c in enumerate(text):
        if i > 0 and (len(text) - i) % 3 == 0:
            out += ","
        out += c
    return "-" + out if n < 0 else out


def overdraft_days(start, items):
    """Count the days with a negative balance."""
    total = 0
    for x in items:
        start += x
        if start < 0:
            total += 1
    return total


def best_trade(prices):
    """Find the best profit of one trade."""
    best, low = 0, prices[0]
    for x in prices[1:]:
        best = max(best, x - low)
        low = min(low, x)
    return best


def shipping_cost(weight, total):
    """Price a parcel by weight and order."""
    if total >= 5000:
        return 0
    if weight < 2:
        return 400
    return 250 + 200 * weight
