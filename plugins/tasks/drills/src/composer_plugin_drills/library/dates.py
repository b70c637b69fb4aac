"""Small functions on calendar dates and clock times."""


def is_leap(year):
    """Tell whether a year is leap."""
    if year % 400 == 0:
        return True
    if year % 100 == 0:
        return False
    return year % 4 == 0


def month_days(year, month):
    """Count the days of a month."""
    if month == 2:
        leap = year % 4 == 0 and year % 100 != 0
        return 29 if leap or year % 400 == 0 else 28
    if month in (4, 6, 9, 11):
        return 30
    return 31


def year_day(month, day, leap):
    """Give the day number within a year."""
    days = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30]
    total = day
    for i in range(month - 1):
        total += days[i]
    if leap and month > 2:
        total += 1
    return total


def week_number(day, first):
    """Number the week that holds a day."""
    if day < 1:
        return 0
    offset = (day - 1 + first) // 7
    return offset + 1


def clock_minutes(text):
    """Turn a clock time into minutes."""
    parts = text.split(":")
    if len(parts) != 2:
        return -1
    hours, minutes = int(parts[0]), int(parts[1])
    return hours * 60 + minutes


def clock_text(minutes):
    """Write minutes as a clock time."""
    minutes = minutes % 1440
    hours = minutes // 60
    rest = minutes - hours * 60
    return f"{hours:02d}:{rest:02d}"


def twelve_hour(hour, minute):
    """Write a clock time with am or pm."""
    mark = "am" if hour < 12 else "pm"
    hour = hour % 12
    if hour == 0:
        hour = 12
    return f"{hour}:{minute:02d}{mark}"


def week_day(year, month, day):
    """Find the weekday, Monday being zero."""
    if month < 3:
        month += 12
        year -= 1
    leaps = year // 4 - year // 100 + year // 400
    shift = 13 * (month + 1) // 5 + 5
    return (year + leaps + shift + day) % 7


def next_date(month, day, days):
    """Step to the day after a date."""
    if day < days:
        return [month, day + 1]
    if month == 12:
        return [1, 1]
    return [month + 1, 1]


def shift_hours(start, stop):
    """Count the hours of a work shift."""
    if start < 0 or stop > 24:
        return 0
    if stop <= start:
        stop += 24
    return stop - start


def age_on(birth, today):
    """Count full years between two dates."""
    age = today[0] - birth[0]
    if today[1:] < birth[1:]:
        age -= 1
    return max(age, 0)


def season_of(date):
    """Name the season of a date."""
    month = date[0]
    if month < 3 or month == 12:
        return "winter"
    if month < 6:
        return "spring"
    return "summer" if month < 9 else "autumn"


def split_seconds(total):
    """Split seconds into hours, minutes, seconds."""
    hours = total // 3600
    rest = total % 3600
    minutes = rest // 60
    return [hours, minutes, rest - minutes * 60]


def date_shape(text):
    """Check the shape of a date."""
    parts = text.split("-")
    if len(parts) != 3 or len(parts[0]) != 4:
        return False
    month, day = int(parts[1]), int(parts[2])
    return 1 <= month <= 12 and 1 <= day <= 31


def work_days(start, count):
    """Count weekdays in a run of days."""
    total = count // 7 * 5
    for i in range(count % 7):
        if (start + i) % 7 < 5:
            total += 1
    return total
