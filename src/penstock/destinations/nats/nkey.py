"""Sign the server's nonce with an nkey seed, as credentials files hold it: Ed25519 (RFC 8032), once per connection.

NATS' nkeys are base32 of a prefix, 32 bytes and a checksum. Python's library has no Ed25519, and one signature per
connection is all that is needed, so it is written out here.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, _P - 2, _P) % _P
_ROOT = pow(2, (_P - 1) // 4, _P)
_SEED, _USER = 18 << 3, 20 << 3

_Point = tuple[int, int, int, int]


class BadKey(ValueError):
    """The text is not an nkey."""


def seed_bytes(text: str) -> bytes:
    """Return the 32 bytes of a seed (`SU…`). BadKey for any other text."""
    octets = _decoded(text)
    if len(octets) != 34 or octets[0] & 0xF8 != _SEED:
        raise BadKey("not a seed: it must begin with SU")
    return octets[2:]


def encode(prefix: int, raw: bytes, seed_of: int | None = None) -> str:
    """Return raw bytes as an nkey of this prefix; with `seed_of`, as the seed of a key of that prefix."""
    head = bytes([prefix]) if seed_of is None else bytes([_SEED | seed_of >> 5, (seed_of & 31) << 3])
    octets = head + raw
    return base64.b32encode(octets + binascii.crc_hqx(octets, 0).to_bytes(2, "little")).decode().rstrip("=")


def public_text(seed: bytes, prefix: int = _USER) -> str:
    """Return the public nkey of a seed (`U…` of a user)."""
    return encode(prefix, public_key(seed))


def public_key(seed: bytes) -> bytes:
    return _packed(_times(_secret(seed)[0], _BASE))


def sign(seed: bytes, message: bytes) -> bytes:
    """Return the 64 bytes of the signature."""
    scalar, prefix = _secret(seed)
    public = _packed(_times(scalar, _BASE))
    r = _hash(prefix + message) % _ORDER
    point = _packed(_times(r, _BASE))
    s = (r + _hash(point + public + message) * scalar) % _ORDER
    return point + s.to_bytes(32, "little")


def _decoded(text: str) -> bytes:
    try:
        octets = base64.b32decode(text + "=" * (-len(text) % 8))
    except binascii.Error as error:
        raise BadKey(f"not an nkey: {error}") from None
    content, checksum = octets[:-2], octets[-2:]
    if len(octets) < 3 or binascii.crc_hqx(content, 0).to_bytes(2, "little") != checksum:
        raise BadKey("not an nkey: its checksum is wrong")
    return content


def _hash(octets: bytes) -> int:
    return int.from_bytes(hashlib.sha512(octets).digest(), "little")


def _secret(seed: bytes) -> tuple[int, bytes]:
    digest = hashlib.sha512(seed).digest()
    scalar = int.from_bytes(digest[:32], "little") & ((1 << 254) - 8) | (1 << 254)
    return scalar, digest[32:]


def _plus(a: _Point, b: _Point) -> _Point:
    one, other = (a[1] - a[0]) * (b[1] - b[0]) % _P, (a[1] + a[0]) * (b[1] + b[0]) % _P
    c, d = 2 * a[3] * b[3] * _D % _P, 2 * a[2] * b[2] % _P
    e, f, g, h = other - one, d - c, d + c, other + one
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(factor: int, point: _Point) -> _Point:
    total: _Point = (0, 1, 1, 0)
    while factor:
        if factor & 1:
            total = _plus(total, point)
        point = _plus(point, point)
        factor >>= 1
    return total


def _packed(point: _Point) -> bytes:
    inverse = pow(point[2], _P - 2, _P)
    x, y = point[0] * inverse % _P, point[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _base() -> _Point:
    y = 4 * pow(5, _P - 2, _P) % _P
    square = (y * y - 1) * pow(_D * y * y + 1, _P - 2, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT % _P
    x = _P - x if x & 1 else x
    return x, y, 1, x * y % _P


_BASE = _base()
