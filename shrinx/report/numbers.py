"""Numbers as they come out of JSON, and numbers as they are read by people."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def number(value: Any) -> float:
    """A float; NaN for what JSON writes as null and for anything that is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value) if math.isfinite(value) else math.nan


def numbers(values: Iterable[Any] | None) -> list[float]:
    return [number(value) for value in values or ()]


def has_prior(modules: Iterable[Mapping[str, Any]]) -> bool:
    """Whether any module is held; without a prior all adapt alike, and none is selected over another."""
    return bool(known(module.get("variance") for module in modules))


def spread_of_variances(modules: Iterable[Mapping[str, Any]]) -> float:
    """The largest over the smallest; infinite if there are none, or some are 0.

    >>> spread_of_variances([{"variance": 6.0}, {"variance": 2.0}])
    3.0
    """
    found = known(module.get("variance") for module in modules)
    return max(found) / min(found) if found and min(found) > 0 else math.inf


def have_one_variance(modules: Sequence[Mapping[str, Any]]) -> bool:
    """Whether several modules share one number, as where none was learned."""
    return len(modules) > 1 and spread_of_variances(modules) < 1 + 1e-4


def have_parted(modules: Sequence[Mapping[str, Any]]) -> bool:
    """Whether variances tell several modules apart, from a factor of two on; a choice by them is noise before that."""
    return has_prior(modules) and len(modules) > 1 and spread_of_variances(modules) >= 2


def known(values: Iterable[Any] | None) -> list[float]:
    """The finite numbers among `values`."""
    return [value for value in numbers(values) if not math.isnan(value)]


def mean(values: Iterable[Any] | None) -> float:
    """Mean of the finite numbers among `values`; NaN if there are none."""
    found = known(values)
    return math.fsum(found) / len(found) if found else math.nan


def log_variances(row: dict[str, Any], num_modules: int) -> list[float]:
    """The log variance of each module, averaged over seeds."""
    seeds = row.get("log_variance") or []
    return [mean(seed[index] for seed in seeds if index < len(seed)) for index in range(num_modules)]


def short(value: Any, digits: int = 3) -> str:
    """Three significant digits, powers of ten spelled out.

    >>> short(0.07), short(1234.6), short(2.51e-7), short(-999.6), short(None)
    ('0.07', '1235', '2.51 × 10⁻⁷', '−1000', '–')
    """
    value = number(value)
    if math.isnan(value):
        return "–"
    if value == 0:
        return "0"
    rounded = abs(float(f"{value:.{digits - 1}e}"))  # 999.6 is written like 1000, not like 1e+03.
    if 10**digits <= rounded < 1e5:
        return f"{value:.0f}".replace("-", "−")
    if 1e-3 <= rounded < 10**digits:
        return f"{value:.{digits}g}".replace("-", "−")
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPTS)
    text = power if mantissa == "1" else f"{mantissa} × {power}"
    return text.replace("-", "−")


def percent(fraction: Any, digits: int = 2) -> str:
    """
    >>> percent(0.0451), percent(1.0), percent(0.2041, 3)
    ('4.5 %', '100 %', '20.4 %')
    """
    value = 100 * number(fraction)
    return "–" if math.isnan(value) else f"{value:.{digits}g} %" if 0 < value < 99.5 else f"{value:.0f} %"


def with_interval(score: dict[str, Any] | None) -> str:
    """Mean and half width of the 95 % interval, to the digits that the interval supports.

    >>> with_interval({"mean": 0.070213, "ci95": 0.00312}), with_interval({"mean": 0.07, "ci95": None})
    ('0.0702 ± 0.0031', '0.07')
    """
    score = score or {}
    middle, width = number(score.get("mean")), number(score.get("ci95"))
    if math.isnan(middle) or math.isnan(width):
        return short(middle)
    if width <= 0 or not 1e-4 < max(abs(middle), width) < 1e5:
        return f"{short(middle)} ± {short(width, 2)}"
    places = min(max(0, 1 - math.floor(math.log10(width))), 6)
    return f"{middle:.{places}f} ± {width:.{places}f}".replace("-", "−")


def word(count: int) -> str:
    """
    >>> word(2), word(123)
    ('two', '123')
    """
    return _WORDS[count] if 0 <= count < len(_WORDS) else str(count)


def duration(seconds: Any) -> str:
    """
    >>> duration(42.31), duration(754), duration(9000)
    ('42 s', '12 min 34 s', '2 h 30 min')
    """
    value = number(seconds)
    if math.isnan(value):
        return "–"
    if value < 10:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def clean(text: Any) -> str:
    """`text` on one line and without the characters that XML forbids."""
    line = " ".join(str(text).split())
    return "".join(c if c.isprintable() and not 0xD800 <= ord(c) < 0xE000 else "\ufffd" for c in line)
