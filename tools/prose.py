"""Check the words of prose and identifiers: `python tools/prose.py [FOLDER ...]`.

`prose.toml` lists the words to avoid, what to write instead, and legitimate uses of them.
`prose_baseline.toml` holds the number of findings that each folder still has. A folder with more
findings fails, and so does one with fewer, until `--update` lowers its number. `--update` refuses
a larger total, so that findings can move with their files and never grow. In a folder without a
number, and everywhere if the baseline is empty, each finding fails and is printed.

With folders as arguments, it prints each finding in them as `file:line: word -> replacement`.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = frozenset({".c", ".css", ".def", ".h", ".html", ".in", ".inc", ".js", ".md", ".py"})
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True)
class Rule:
    """A pattern to avoid, matched in lower case with identifiers split into words."""

    pattern: re.Pattern[str]
    replacement: str
    allowed: re.Pattern[str] | None


@dataclass(frozen=True)
class Finding:
    """One match of a rule; `file` is relative to the root, and `line` counts from 1."""

    file: Path
    line: int
    word: str
    replacement: str

    def __str__(self) -> str:
        return f"{self.file.as_posix()}:{self.line}: {self.word!r} -> {self.replacement}"


@dataclass(frozen=True)
class Config:
    """The rules, and the path prefixes that are not checked."""

    rules: tuple[Rule, ...]
    skipped: tuple[str, ...]


def load_config(path: Path) -> Config:
    """Read `prose.toml`; a malformed pattern raises `re.error`."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    rules = tuple(
        Rule(
            re.compile(rf"(?<![a-z])(?:{entry['avoid']})(?![a-z])"),
            entry["write"],
            re.compile(entry["allow"]) if "allow" in entry else None,
        )
        for entry in data["rule"]
    )
    return Config(rules, tuple(data["skip"]))


def split_identifiers(line: str) -> str:
    """Return the line in lower case, `snake_case` and `CamelCase` split into words."""
    return _CAMEL_CASE.sub(" ", line).replace("_", " ").lower()


def check_line(line: str, rules: tuple[Rule, ...]) -> Iterator[tuple[str, str]]:
    """Yield each (word, replacement) in one line of text."""
    words = split_identifiers(line)
    for rule in rules:
        text = rule.allowed.sub("", words) if rule.allowed else words
        for match in rule.pattern.finditer(text):
            yield match.group(), rule.replacement


def source_files(root: Path, skipped: tuple[str, ...]) -> Iterator[Path]:
    """Yield checked files relative to `root`; hidden and build folders are left out."""
    folders = (path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    paths = [*root.glob("*.*"), *(path for folder in folders for path in folder.rglob("*.*"))]
    for path in sorted(paths):
        file = path.relative_to(root)
        if path.suffix not in SUFFIXES or not path.is_file():
            continue
        if any(part.startswith(".") or part.endswith(".egg-info") for part in file.parts):
            continue
        if "build" in file.parts or file.as_posix().startswith(skipped):
            continue
        yield file


def check(root: Path, config: Config) -> Iterator[Finding]:
    """Yield the findings in file names and texts below `root`, in order of path and line."""
    for file in source_files(root, config.skipped):
        for word, replacement in check_line(file.stem, config.rules):
            yield Finding(file, 1, word, f"{replacement} (file name)")
        text = (root / file).read_text(encoding="utf-8")
        for number, line in enumerate(text.splitlines(), 1):
            for word, replacement in check_line(line, config.rules):
                yield Finding(file, number, word, replacement)


def folder_of(file: Path) -> str:
    """Return the folder whose baseline counts this file: at most `distribution/src`."""
    parts = file.parent.parts
    if not parts:
        return "."
    depth = {"docs": 1, "benchmarks": 1, "tools": 1, "plugins": 3}.get(parts[0], 2)
    return "/".join(parts[:depth])


def compare(findings: list[Finding], baseline: dict[str, int]) -> list[str]:
    """Return one message for each folder whose count differs from the baseline.

    A folder that the baseline does not list has one message for each finding instead.
    """
    counts = Counter(folder_of(finding.file) for finding in findings)
    messages = [str(found) for found in findings if not baseline.get(folder_of(found.file))]
    for folder in sorted(baseline):
        count, limit = counts[folder], baseline[folder]
        if count > limit > 0:
            messages.append(
                f"{folder}: {count} findings, the baseline allows {limit}; "
                f"`python tools/prose.py {folder}` lists them"
            )
        elif count < limit:
            messages.append(
                f"{folder}: {count} findings, below the baseline of {limit}; "
                "lower it with `python tools/prose.py --update`"
            )
    return messages


def write_baseline(path: Path, counts: Counter[str]) -> None:
    """Write the folders that still have findings, with their numbers."""
    lines = [
        "# Findings of tools/prose.py per folder. Numbers shrink only; `--update` lowers them.",
        "[folders]",
        *(f'"{folder}" = {counts[folder]}' for folder in sorted(counts)),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Run the check; return 0 where every folder equals its baseline."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="*", help="print every finding below these paths")
    parser.add_argument("--update", action="store_true", help="lower the baseline")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to read")
    options = parser.parse_args(arguments)
    tools = options.root / "tools"
    findings = list(check(options.root, load_config(tools / "prose.toml")))
    if options.folders:
        wanted = [Path(folder) for folder in options.folders]
        listed = [
            finding
            for finding in findings
            if any(finding.file.is_relative_to(folder) for folder in wanted)
        ]
        sys.stdout.writelines(f"{finding}\n" for finding in listed)
        return 1 if listed else 0
    counts = Counter(folder_of(finding.file) for finding in findings)
    path = tools / "prose_baseline.toml"
    baseline: dict[str, int] = tomllib.loads(path.read_text(encoding="utf-8"))["folders"]
    if options.update:
        if counts.total() > sum(baseline.values()):
            sys.stderr.write(
                f"{counts.total()} findings, more than the {sum(baseline.values())} of {path}: "
                "reword the new ones, then update\n"
            )
            return 1
        write_baseline(path, counts)
        return 0
    messages = compare(findings, baseline)
    sys.stderr.writelines(f"{message}\n" for message in messages)
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())
