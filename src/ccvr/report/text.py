"""Text of runs, made safe to show."""

import unicodedata


def shown(name: object, most: int = 24) -> str:
    """A name as a figure can show it: one line, not too long, nothing that turns the text around."""
    text = "".join(" " if char.isspace() else char for char in plain(name))
    return text if len(text) <= most else f"{text[: most - 9]}…{text[-8:]}"


def plain(text: object) -> str:
    """Text without characters that XML forbids and without marks that change its direction."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if _is_forbidden(char) else char
        for char in str(text)
        if not 0x202A <= ord(char) <= 0x202E and not 0x2066 <= ord(char) <= 0x2069
    )


def _is_forbidden(char: str) -> bool:
    """Control characters, surrogates and noncharacters."""
    return (unicodedata.category(char) in ("Cc", "Cs") and char not in "\n\t") or ord(char) & 0xFFFE == 0xFFFE
