"""Has a change of the waiting policy made any kind of contention worse? A line for each kind, and what is worst.

    python -m benchmarks.contention_score --json before.json     # a minute; --seeds
    python -m benchmarks.contention_score --against before.json  # beside another run, and what is worst

Everything is simulated (`benchmarks.contention`): exact, and independent of the machine. A figure of one case depends
on its few seeds, by a factor of two where a wait is short; the means of a kind (geometric, of some dozens) do by a few
percent. A case whose turns are short or that begins with a burst tells most.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from benchmarks.contention import Case, Simulation

STORES = {
    "1 ms": {"get_s": 0.001, "put_s": 0.002},
    "15 ms": {"get_s": 0.015, "put_s": 0.030},
    "40 ms": {"get_s": 0.040, "put_s": 0.080},
    "1/s": {"get_s": 0.050, "put_s": 0.080, "writes_per_s": 1.0},
}
TURNS = {
    "1 ms": {"hold_s": 0.001},
    "30 ms": {"hold_s": 0.030},
    "300 ms": {"hold_s": 0.300},
    "uneven": {"hold_s": 0.020, "long_s": 1.0},
}
FIGURES = ("requests", "hand_over_ms", "per_s", "wait_max_s", "unfairness")
_ROUNDS = 5


def cases() -> Iterator[tuple[str, Case]]:
    """Yield the cases by name: each store, length of turns and number of contenders.

    Then with JVM writers, deaths and work.
    """
    for store, way in STORES.items():
        for turn, lasts in TURNS.items():
            for processes, threads in ((2, 1), (8, 1), (32, 1), (128, 1), (4, 8)):
                contenders = processes * threads
                if store == "1/s" and contenders > 32:
                    continue
                case = Case(processes, threads, **way, **lasts)
                mean_s = case.hold_s + case.long_s / 10 + 2 * case.put_s
                turn_s = max(mean_s, 2 / case.writes_per_s if case.writes_per_s else 0.0)
                closed_s = max(5.0, _ROUNDS * contenders * turn_s)
                name = f"{store}, turns {turn}, {processes}x{threads}"
                yield f"{name}, drain", replace(case, lasts_s=1e9)
                yield f"{name}, loop", replace(case, rounds=0, lasts_s=closed_s)
                if processes == 32:
                    yield f"{name}, apart", replace(case, apart_s=contenders * turn_s, lasts_s=1e9)
    for processes in (8, 64):
        for turn in ("1 ms", "300 ms"):
            guest = Case(processes, rounds=0, lasts_s=120.0, guests=1, **STORES["15 ms"], **TURNS[turn])
            yield f"a JVM client, turns {turn}, {processes}x1, loop", guest
        dying = Case(processes, rounds=0, lasts_s=40.0, **STORES["15 ms"], **TURNS["30 ms"])
        yield f"half die, {processes}x1, loop", replace(dying, die=processes // 2, die_by_s=10.0)
        yield f"with work, {processes}x1, loop", replace(dying, work_s=0.5)
        yield f"rare, {processes}x1, loop", replace(dying, work_s=0.2 * processes)


def measured(task: tuple[str, Case, int]) -> tuple[str, dict[str, float]]:
    """Simulate a case with its seeds (half of them for 100 contenders or more); return its name and mean figures.

    Of idle time, unserved contenders and waits of JVM writers, the worst.
    """
    name, case, seeds = task
    runs = [Simulation(case, seed).run() for seed in range(seeds if case.contenders < 100 else max(2, seeds // 2))]
    found = {figure: fmean(getattr(run, figure) for run in runs) for figure in FIGURES}
    found["idle_max_s"] = max(run.idle_max_s for run in runs)
    found["unserved"] = max(run.unserved for run in runs)
    if case.guests:
        found["guest_wait_s"] = max(run.guest_wait_s for run in runs)
    return name, found


def score(seeds: int) -> dict[str, dict[str, float]]:
    """All cases."""
    tasks = [(name, case, seeds) for name, case in cases()]
    with ProcessPoolExecutor(min(3, os.cpu_count() or 1)) as pool:
        return dict(pool.map(measured, tasks))


def summary(found: dict[str, dict[str, float]], base: dict[str, dict[str, float]] | None) -> Iterator[str]:
    """Yield a line for each kind of case: geometric means of the figures, with their ratios to `base`, if given."""
    kinds = [f", {n}," for n in ("2x1", "8x1", "32x1", "128x1", "4x8")]
    kinds += [f"{store}, turns" for store in STORES] + [f"turns {turn}," for turn in TURNS]
    kinds += ["drain", "loop", "apart", "JVM", "die", "with work", "rare", ""]
    for kind in kinds:
        names = [n for n in found if (n.startswith(kind) if kind.endswith("turns") else kind in n)]
        cells = []
        for figure in FIGURES:
            now = mean(found, names, figure)
            then = "" if base is None else f" {now / mean(base, names, figure):5.2f}x"
            cells.append(f"{now:9.2f}{then}")
        yield f"{kind.strip(', ') or 'all':16s} {' '.join(cells)}"


def mean(found: dict[str, dict[str, float]], names: list[str], figure: str) -> float:
    """Geometric."""
    return math.exp(fmean(math.log(max(found[name][figure], 1e-6)) for name in names))


def changes(found: dict[str, dict[str, float]], base: dict[str, dict[str, float]]) -> Iterator[tuple[float, str]]:
    """Yield each figure that is worse than in `base` by more than a quarter, with a factor to sort by."""
    for name, figures in found.items():
        for figure, now in figures.items():
            then = base[name][figure]
            if figure in ("unserved", "idle_max_s", "guest_wait_s"):
                if now > then * 1.25 + 0.5:
                    yield 9.0, f"{name:40s} {figure} {then:.2f} -> {now:.2f}"
                continue
            worse = then / max(now, 1e-9) if figure == "per_s" else now / max(then, 1e-9)
            if worse > 1.25:
                yield worse, f"{name:40s} {figure} {then:.2f} -> {now:.2f} ({worse:.2f}x)"


def main() -> None:
    """Simulate all cases; print means and the worst changes.

    `--json` writes the figures, `--against` reads older ones.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--worst", type=int, default=12)
    args = parser.parse_args()
    found = score(args.seeds)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    base = json.loads(args.against.read_text()) if args.against else None
    print(f"{'':16s} {' '.join(f'{figure:>9s}' + ('       ' if base else '') for figure in FIGURES)}")
    print("\n".join(summary(found, base)))
    if base:
        for _, line in sorted(changes(found, base), reverse=True)[: args.worst]:
            print(line)
    for name, figures in found.items():
        if "guest_wait_s" in figures or figures["idle_max_s"] > 5:
            print(f"{name:40s} guest {figures.get('guest_wait_s', 0):.1f} s, idle {figures['idle_max_s']:.1f} s")


if __name__ == "__main__":
    main()
