"""Numbers as they are read by people."""

import math


def short(value: float | None) -> str:
    """Three significant digits.

    >>> short(134.04), short(36.79), short(0.000238), short(2.377e-6), short(12345.6), short(None)
    ('134', '36.8', '0.000238', '2.38e-06', '12346', '–')
    """
    if value is None:
        return "–"
    return f"{value:.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"


def with_interval(mean: float | None, ci95: float | None) -> str:
    """Mean and half width of the 95 % interval, to the two digits of the interval that mean something.

    >>> with_interval(2.9074, 0.2778), with_interval(0.03228, 0.01465), with_interval(0.07, None)
    ('2.91 ± 0.28', '0.032 ± 0.015', '0.07')
    """
    if mean is None or not ci95:
        return short(mean)
    places = max(0, 1 - math.floor(math.log10(ci95)))
    return f"{mean:.{places}f} ± {ci95:.{places}f}"


def rate_with_interval(mean: float | None, ci95: float | None) -> str:
    """The same of a share of right answers, in percent.

    >>> rate_with_interval(0.98864, 0.00121), rate_with_interval(0.771, 0.1249), rate_with_interval(0.789, None)
    ('98.9 ± 0.1 %', '77.1 ± 12.5 %', '78.9 %')
    """
    if mean is None:
        return "–"
    return f"{100 * mean:.1f} ± {100 * ci95:.1f} %" if ci95 else f"{100 * mean:.1f} %"


def difference(mean: float | None, paper: float | None) -> str:
    """How far a number is from the paper's, to three decimals.

    >>> difference(0.824, 0.789), difference(0.626, 0.728), difference(None, 0.728)
    ('+0.035', '−0.102', '–')
    """
    if mean is None or paper is None:
        return "–"
    return f"{mean - paper:+.3f}".replace("-", "−")


def points(mean: float | None, paper: float | None) -> str:
    """The same of shares of right answers, in percentage points.

    >>> points(0.824, 0.789), points(0.626, 0.728), points(None, 0.728)
    ('+3.5', '−10.2', '–')
    """
    if mean is None or paper is None:
        return "–"
    return f"{100 * (mean - paper):+.1f}".replace("-", "−")


def gain_with_interval(gain: float, ci95: float | None) -> str:
    """A difference of two shares of right answers, in percentage points.

    >>> gain_with_interval(0.0472, 0.0318), gain_with_interval(-0.131, 0.16), gain_with_interval(0.045, None)
    ('+4.7 ± 3.2', '−13.1 ± 16.0', '+4.5')
    """
    return points(gain, 0.0) + (f" ± {100 * ci95:.1f}" if ci95 else "")


def percent(share: float | None) -> str:
    """
    >>> percent(0.0454), percent(0.90857), percent(1.0), percent(0.0006)
    ('4.5 %', '91 %', '100 %', '0.06 %')
    """
    if share is None:
        return "–"
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"
