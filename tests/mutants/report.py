"""The report of a run of mutations: a table for each package and the list of survivors."""

from __future__ import annotations

from pathlib import Path

KILLED = ("failed", "stuck")


def write_report(rows: list[dict], command: str, path: Path | None) -> None:
    """Print the table, and keep it with the list of survivors where there is a path.

    Sentences that somebody wrote beneath a survivor of an earlier report are kept.
    """
    lines = [
        "| package | mutations | killed by the fast tier | killed by all that lands | fast of all |",
        "|---|---|---|---|---|",
    ]
    packages = sorted({row["package"] for row in rows})
    for package in [*packages, "all"]:
        own = [row for row in rows if package in (row["package"], "all")]
        count = len({row["mutation"] for row in own})
        fast = len({row["mutation"] for row in own if row["tier"] == "fast" and row["outcome"] in KILLED})
        full = len({row["mutation"] for row in own if row["outcome"] in KILLED})
        shares = f"{fast} ({fast / count:.0%}) | {full} ({full / count:.0%}) | {fast / max(full, 1):.1%}"
        lines.append(f"| {package} | {count} | {shares} |")
    print("\n".join(lines))
    killed = {row["mutation"] for row in rows if row["outcome"] in KILLED}
    fast = {row["mutation"] for row in rows if row["tier"] == "fast" and row["outcome"] in KILLED}
    survivors = sorted({row["mutation"] for row in rows} - killed)
    print("\nsurvivors\n" + "\n".join(survivors))
    if path is None:
        return
    notes = _notes(path.read_text()) if path.exists() else {}
    sections = {"Survivors of every tier": survivors, "Killed only after the fast tier": sorted(killed - fast)}
    path.write_text(
        f"# Mutations\n\n`{command}`\n\n"
        + "\n".join(lines)
        + "\n"
        + "".join(
            f"\n## {title}\n\n" + "".join(f"- `{name}`\n{notes.get(name, '')}" for name in names)
            for title, names in sections.items()
        )
    )


def _notes(text: str) -> dict[str, str]:
    """What stands beneath each survivor of an earlier report."""
    notes: dict[str, str] = {}
    name = ""
    for line in text.splitlines(keepends=True):
        if line.startswith("- `"):
            name = line.strip()[3:-1]
            notes[name] = ""
        elif line.startswith("  ") and name:
            notes[name] += line
        else:
            name = ""
    return notes
