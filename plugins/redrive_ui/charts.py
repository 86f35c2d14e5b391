"""Charts as SVG, made on the server: no script, no library. Colours are classes, so that dark and light both fit.

Every chart carries its numbers as text (a title, and labels that a screen reader reads).
"""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from redrive_ui.formatting import number, share

#: Series that get a colour of their own; what is left is drawn as one.
COLOURS = 7


def ranked(totals: Mapping[str, int]) -> list[str]:
    """The names that get a colour, largest first; the rest share ``other``."""
    names = sorted((name for name in totals if totals[name]), key=lambda name: (-totals[name], name))
    return names if len(names) <= COLOURS else [*names[: COLOURS - 1], "other"]


def stacked_bars(days: Sequence[str], series: Mapping[str, Mapping[str, int]], label: str) -> Markup:
    """Counts per UTC day, as the axis says: one colour per name of ``series`` (name to day to count), in the order of
    :func:`ranked`."""
    names = ranked({name: sum(per_day.values()) for name, per_day in series.items()})
    rest = [name for name in series if name not in names]
    per_day = {
        day: [
            sum(series[one].get(day, 0) for one in rest) if name == "other" else series[name].get(day, 0)
            for name in names
        ]
        for day in days
    }
    top = _round_up(max((sum(counts) for counts in per_day.values()), default=0))
    width, height, left, bottom = 640, 200, 44, 22
    step = (width - left) / max(1, len(days))
    parts = []
    for line in (0.0, 0.5, 1.0):
        y = 8 + (height - bottom - 8) * (1 - line)
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(left, width, y, y)
            + Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
                left - 6, y + 4, _short(top * line)
            )
        )
    parts.append(Markup('<text class="tick" x="{}" y="{}" text-anchor="end">UTC</text>').format(left - 6, height - 6))
    for position, day in enumerate(days):
        x, y = left + position * step, float(height - bottom)
        told = ", ".join(f"{name} {number(n)}" for name, n in zip(names, per_day[day], strict=True) if n)
        bars = []
        for colour, count in enumerate(per_day[day]):
            tall = (height - bottom - 8) * count / top
            y -= tall
            if count:
                bars.append(
                    Markup('<rect class="c{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="1"/>').format(
                        colour, x + step * 0.14, y, step * 0.72, max(tall, 0.8)
                    )
                )
        parts.append(
            Markup("<g><title>{} (UTC): {}</title>{}</g>").format(day, told or "nothing", Markup("").join(bars))
        )
        if len(days) <= 8 or position % 2 == (len(days) - 1) % 2:
            parts.append(
                Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
                    x + step / 2, height - 6, day[5:]
                )
            )
    return _svg(width, height, label, parts)


def funnel(steps: Sequence[tuple[str, int]], label: str) -> Markup:
    """Steps under each other, each with its share of the first."""
    width, row = 640, 38
    most = max((count for _, count in steps), default=0) or 1
    first = steps[0][1] if steps else 0
    parts = []
    for position, (name, count) in enumerate(steps):
        y, wide = position * row + 4, (width - 230) * count / most
        parts.append(
            Markup(
                '<text class="name" x="0" y="{}">{}</text><rect class="track" x="150" y="{}" width="{}" height="22"'
                ' rx="3"/><rect class="f{}" x="150" y="{}" width="{:.1f}" height="22" rx="3"/>'
                '<text class="value" x="{:.1f}" y="{}">{}<tspan class="tick"> {}</tspan></text>'
            ).format(
                y + 16, name, y, width - 230, position, y, max(wide, 1.0 if count else 0.0), 150 + wide + 7, y + 16,
                number(count), share(count, first) if position else "",
            )
        )  # fmt: skip
    return _svg(width, len(steps) * row, label, parts)


def histogram(buckets: Sequence[tuple[str, int]], label: str) -> Markup:
    """A bar per bucket with its count above."""
    width, height, bottom = 640, 170, 22
    most = max((count for _, count in buckets), default=0) or 1
    step = width / max(1, len(buckets))
    parts = []
    for position, (name, count) in enumerate(buckets):
        tall = (height - bottom - 24) * count / most
        x, y = position * step, height - bottom - tall
        parts.append(
            Markup(
                '<g><title>{}: {}</title>'
                '<rect class="a{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2"/>'
                '<text class="value" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text></g>'
                '<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>'
            ).format(
                name, number(count), position, x + step * 0.1, y, step * 0.8, max(tall, 0.8), x + step / 2, y - 6,
                number(count), x + step / 2, height - 6, name,
            )
        )  # fmt: skip
    return _svg(width, height, label, parts)


def sparkline(counts: Sequence[int], label: str) -> Markup:
    """A small row of bars, as high as a line of text."""
    width, height = 84, 20
    most = max(counts, default=0) or 1
    step = width / max(1, len(counts))
    parts = [
        Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
            "spark" if count else "track",
            position * step,
            height - max(1.0, (height - 1) * count / most),
            step * 0.75,
            max(1.0, (height - 1) * count / most),
        )
        for position, count in enumerate(counts)
    ]
    return _svg(width, height, label, parts, "sparkline")


def _svg(width: int, height: int, label: str, parts: Sequence[Markup], kind: str = "chart") -> Markup:
    return Markup(
        '<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="xMinYMid meet">{}</svg>'
    ).format(kind, width, height, label, Markup("").join(parts))


def _round_up(value: int) -> int:
    """The next number that reads well on an axis."""
    if value <= 4:
        return 4
    size = 10 ** (len(str(value)) - 1)
    return int(next(step * size for step in (1, 2, 3, 4, 5, 6, 8, 10, 20) if step * size >= value))


def _short(value: float) -> str:
    for size, name in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:.1f}".rstrip("0").rstrip(".") + name
    return f"{value:.0f}"
