"""The report of a run of mutations: a table for each package and the list of survivors."""

from __future__ import annotations

from pathlib import Path

KILLED = ("failed", "stuck")


def write_report(rows: list[dict], command: str, commit: str, path: Path | None) -> None:
    """Print the table, and keep it with the list of survivors where there is a path.

    Sentences that somebody wrote beneath a survivor of an earlier report are kept.
    """
    has_full = any(row["tier"] == "full" for row in rows)
    titles = ["package", "mutations", "killed by the fast tier"]
    titles += ["killed by all that lands", "fast of all"] if has_full else []
    lines = ["".join(f"| {title} " for title in titles) + "|", "|---" * len(titles) + "|"]
    packages = sorted({row["package"] for row in rows})
    for package in [*packages, "all"]:
        own = [row for row in rows if package in (row["package"], "all")]
        count = len({row["mutation"] for row in own})
        fast = len({row["mutation"] for row in own if row["tier"] == "fast" and row["outcome"] in KILLED})
        full = len({row["mutation"] for row in own if row["outcome"] in KILLED})
        line = f"| {package} | {count} | {fast} ({fast / count:.0%}) |"
        lines.append(line + (f" {full} ({full / count:.0%}) | {fast / max(full, 1):.1%} |" if has_full else ""))
    print("\n".join(lines))
    killed = {row["mutation"] for row in rows if row["outcome"] in KILLED}
    fast = {row["mutation"] for row in rows if row["tier"] == "fast" and row["outcome"] in KILLED}
    survivors = sorted({row["mutation"] for row in rows} - killed)
    print("\nsurvivors\n" + "\n".join(survivors))
    if path is None:
        return
    notes = _notes(path.read_text()) if path.exists() else {}
    sections = {"Survivors": survivors}
    if has_full:
        sections = {"Survivors of every tier": survivors, "Killed only after the fast tier": sorted(killed - fast)}
    path.write_text(
        f"# Mutations\n\n`{command}`, of the source at {commit}\n\n"
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
