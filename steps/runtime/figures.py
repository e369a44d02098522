"""Formatting of numbers for people."""

from datetime import UTC, datetime

KILO = 1000
MAX_PERCENT_ERROR = 2.0
LEAST_HOURS = 0.01
SECONDS_PER_HOUR = 3600
BYTE_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def format_count(number: int) -> str:
    """Format a whole number, such as 1,234,567."""
    return f"{number:,}"


def format_number(number: float) -> str:
    """Format a number with three significant digits, such as 0.0412, 3.14 or 1,520."""
    if number == 0:
        return "0"
    if abs(number) >= 100:
        return f"{number:,.0f}"
    if abs(number) >= 0.001:
        return f"{number:.3g}"
    return f"{number:.1e}"


def format_bytes(number: float) -> str:
    """Format a number of bytes, such as 1.52 MB."""
    for unit in BYTE_UNITS:
        if number < KILO or unit == BYTE_UNITS[-1]:
            break
        number /= KILO
    return f"{format_number(number)} {unit}"


def format_percent(share: float) -> str:
    """Format a share of 0 to 1, such as 12.5 %. Only 0 and 1 themselves give 0 % and 100 %."""
    percent = f"{100 * share:.1f}"
    if percent == "0.0" and share > 0:
        return "under 0.1 %"
    if percent == "100.0" and share < 1:
        return "over 99.9 %"
    return f"{percent.removesuffix('.0')} %"


def format_estimate_error(error: float) -> str:
    """Format a run's relative deviation from its estimate; above 200 %, as a multiple."""
    if error > MAX_PERCENT_ERROR:
        return f"{format_number(1 + error)} times the estimate"
    comparison = "less" if error < 0 else "more"
    return f"{format_percent(abs(error))} {comparison} than estimated"


def format_money(amount: float) -> str:
    """Format an amount in any currency, such as 1,520.00, or 0.0412 if cents are too coarse."""
    if 0 < amount < 0.1:
        return format_number(amount)
    return f"{amount:,.2f}"


def format_duration(number: float) -> str:
    """Format a duration in seconds, such as 41.5 s, 12 min, 3 h 20 min or 1,520 h."""
    if 0 < number < 0.001:
        return "under 0.001 s"
    if number < 100:
        return f"{format_number(number)} s"
    minutes = round(number / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours = number / SECONDS_PER_HOUR
    if hours >= 100:
        return f"{hours:,.0f} h"
    return f"{minutes // 60} h {minutes % 60} min"


def format_device_hours(hours: float, noun: str = "device") -> str:
    """Format device time, such as 12.5 device-hours, or 9 s of a device if that is too coarse."""
    if 0 < hours < LEAST_HOURS:
        return f"{format_duration(hours * SECONDS_PER_HOUR)} of a {noun}"
    return f"{format_number(hours)} {noun}-hours"


def format_time(seconds: float) -> str:
    """Format a time in seconds since 1970, such as 2026-11-22 03:04 UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def pluralize(number: int, one: str, many: str | None = None) -> str:
    """Format a number with its noun, such as 1 image or 2,000 images."""
    noun = one if number == 1 else many or f"{one}s"
    return f"{number:,} {noun}"
