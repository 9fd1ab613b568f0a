"""Bytes as an operator reads them."""

from __future__ import annotations

BYTES_SHOWN = 512


def hexadecimal_lines(data: bytes) -> list[str]:
    """Format bytes, sixteen per line, with their offset and their printable characters."""
    lines = []
    for at in range(0, min(len(data), BYTES_SHOWN), 16):
        piece = data[at : at + 16]
        printable = "".join(chr(octet) if 32 <= octet < 127 else "." for octet in piece)
        lines.append(f"{at:08x}  {piece.hex(' '):<47}  {printable}")
    if len(data) > BYTES_SHOWN:
        lines.append(f"… {len(data) - BYTES_SHOWN} more bytes; --json has them all")
    return lines
