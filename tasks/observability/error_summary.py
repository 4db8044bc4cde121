"""The one line of an error text that says what is wrong, for a table or a sentence."""

from __future__ import annotations


def error_summary(text: str, most: int = 300) -> str:
    """The line of a traceback that names the exception; the first line of other text. At most `most` characters."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    # The unindented line after the last frame. The message may have more lines after it.
    last_frame = max((n for n, line in enumerate(lines) if line.startswith('  File "')), default=-1)
    named = (line for line in lines[last_frame + 1 :] if not line[0].isspace()) if last_frame >= 0 else iter(lines)
    line = next(named, lines[-1]).strip()
    return line if len(line) <= most else f"{line[: most - 1]}…"
