"""Check the documents: links lead somewhere, code parses, make targets exist.

Exit status 1 and one line per fault.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
MAKE = re.compile(r"\bmake ([a-z][a-z-]+)`")
DECISION = re.compile(r"\d{4}-[a-z0-9-]+\.md")


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def anchor(heading: str) -> str:
    """Return the anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def faults_of_links(path: Path, text: str) -> Iterator[str]:
    for target in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, wanted = target.partition("#")
        linked = (path.parent / name).resolve() if name else path
        if not linked.exists():
            yield f"link leads nowhere: {target}"
        elif wanted and linked.suffix == ".md":
            headings = {anchor(heading) for heading in HEADING.findall(linked.read_text())}
            if wanted not in headings:
                yield f"no such heading: {target}"


def faults_of_code(text: str) -> Iterator[str]:
    for language, code in FENCE.findall(text):
        try:
            if language == "python":
                compile(code, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            elif language == "toml":
                tomllib.loads(code)
        except (SyntaxError, tomllib.TOMLDecodeError) as error:
            yield f"{language} example does not parse: {error}"


def faults_of_commands(text: str) -> Iterator[str]:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name in MAKE.findall(text):
        if name not in targets:
            yield f"no such make target: {name}"


def faults_of_decisions() -> Iterator[str]:
    folder = ROOT / "docs" / "decisions"
    names = sorted(path.name for path in folder.glob("*.md") if path.name != "README.md")
    numbers = [name[:4] for name in names]
    for name in names:
        if not DECISION.fullmatch(name):
            yield f"docs/decisions/{name}: not named NNNN-title.md"
        elif numbers.count(name[:4]) > 1 and name != "0000-template.md":
            yield f"docs/decisions/{name}: number taken twice"


def main() -> int:
    faults = list(faults_of_decisions())
    paths = documents()
    for path in paths:
        text = path.read_text(encoding="utf-8")
        found = [*faults_of_links(path, text), *faults_of_code(text), *faults_of_commands(text)]
        faults += [f"{path.relative_to(ROOT)}: {fault}" for fault in found]
    sys.stdout.write("\n".join([*faults, f"{len(paths)} documents, {len(faults)} faults"]) + "\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
