"""Count words and lengths of sentences in the README and the pages: python docs/words.py. It gates nothing."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONG = 45  # words


def sentences(text: str) -> list[str]:
    """The sentences of a page of Markdown, without code, tables, formulas, pictures and addresses."""
    text = re.sub(r"```.*?```|\$\$.*?\$\$|<!--.*?-->", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"^(\||#|!\[|:).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`|\$[^$]*\$", "X", text)
    text = re.sub(r"^\s*([-*]|\d+\.)\s+", "\n\n", text, flags=re.MULTILINE)
    blocks = (" ".join(block.split()) for block in re.split(r"\n\s*\n", text))
    found = (sentence for block in blocks for sentence in re.split(r"(?<=[.!?:])[*)\"]*\s+(?=[A-Z0-9(*`X])", block))
    return [sentence for sentence in found if re.search(r"[a-z]{2}", sentence)]


def main() -> None:
    total = 0
    pages = (page for page in (ROOT / "docs").glob("*.md") if not page.name.startswith("auto_"))  # made by the build
    for page in [ROOT / "README.md", *sorted(pages)]:
        text = page.read_text(encoding="utf-8")
        total += len(text.split()) if page.parent != ROOT else 0
        lengths = [(len(sentence.split()), sentence) for sentence in sentences(text)]
        mean = sum(n for n, _ in lengths) / max(1, len(lengths))
        print(f"{page.name:<22}{len(text.split()):>6} words{mean:>7.1f} words a sentence{max(lengths)[0]:>5} at most")
        for n, sentence in lengths:
            if n > LONG:
                print(f"    {n}: {sentence}")
    print(f"{total:,} words outside of the lab")


if __name__ == "__main__":
    main()
