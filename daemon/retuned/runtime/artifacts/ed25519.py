"""Ed25519 signatures (RFC 8032), verification only, with the standard library.

Verification must not depend on the packages that a server has. Where RFC 8032 leaves a choice, the
strict reading applies: encodings are canonical, S is below the group's order, keys and commitments
of small order are refused, and the equation is checked without the cofactor. So a message has one
valid signature per nonce, and no key verifies what its owner did not sign. Nothing secret is
processed, so nothing needs constant time. A check takes some milliseconds.
"""

from __future__ import annotations

import hashlib

KEY_BYTES = 32
SIGNATURE_BYTES = 64

_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, _P - 2, _P) % _P
_ROOT = pow(2, (_P - 1) // 4, _P)
"""A square root of -1."""

Point = tuple[int, int, int, int]
"""Extended coordinates: x = X/Z, y = Y/Z, x*y = T/Z."""

_ZERO: Point = (0, 1, 1, 0)


def verify(public: bytes, message: bytes, *, signature: bytes) -> bool:
    """Whether the owner of a key signed a message; False for malformed input, never raises."""
    if len(public) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    commitment, scalar = signature[:32], int.from_bytes(signature[32:], "little")
    if scalar >= _L:  # otherwise S + L would be a second signature of the same message
        return False
    key, point = _decode(public), _decode(commitment)
    if key is None or point is None or _is_small(key) or _is_small(point):
        return False
    digest = hashlib.sha512(commitment + public + message).digest()
    challenge = int.from_bytes(digest, "little") % _L
    return _same(_combine(scalar, _BASE, times=challenge, other=_negative(key)), point)


def usable(public: bytes) -> bool:
    """Whether bytes are a key for which `verify` can accept a signature."""
    point = _decode(public) if len(public) == KEY_BYTES else None
    return point is not None and not _is_small(point)


def _decode(data: bytes) -> Point | None:
    number = int.from_bytes(data, "little")
    sign, y = number >> 255, number & ((1 << 255) - 1)
    if y >= _P:
        return None
    x = _x_of(y, sign)
    return None if x is None else (x, y, 1, x * y % _P)


def _x_of(y: int, sign: int) -> int | None:
    """Solve the curve's equation for x; None without a solution of that sign."""
    square = (y * y - 1) * pow(_D * y * y + 1, _P - 2, _P) % _P
    if square == 0:
        return None if sign else 0  # zero has no negative
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT % _P
    if (x * x - square) % _P:
        return None
    return _P - x if x & 1 != sign else x


def _add(p: Point, q: Point) -> Point:
    a = (p[1] - p[0]) * (q[1] - q[0]) % _P
    b = (p[1] + p[0]) * (q[1] + q[0]) % _P
    c = 2 * p[3] * q[3] * _D % _P
    d = 2 * p[2] * q[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _double(p: Point) -> Point:
    a = p[0] * p[0] % _P
    b = p[1] * p[1] % _P
    c = 2 * p[2] * p[2] % _P
    h = a + b
    e = h - (p[0] + p[1]) * (p[0] + p[1]) % _P
    g = a - b
    f = c + g
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _combine(times_p: int, p: Point, *, times: int, other: Point) -> Point:
    """Return times_p * p + times * other, with one run of doublings for both."""
    both = _add(p, other)
    table = (None, p, other, both)
    total = _ZERO
    for bit in range(max(times_p.bit_length(), times.bit_length()) - 1, -1, -1):
        total = _double(total)
        choice = table[times_p >> bit & 1 | (times >> bit & 1) << 1]
        if choice is not None:
            total = _add(total, choice)
    return total


def _negative(p: Point) -> Point:
    return _P - p[0], p[1], p[2], _P - p[3]


def _same(p: Point, q: Point) -> bool:
    return (p[0] * q[2] - q[0] * p[2]) % _P == 0 and (p[1] * q[2] - q[1] * p[2]) % _P == 0


def _is_small(p: Point) -> bool:
    """Whether eight times the point is zero: then one signature fits many messages."""
    return _same(_double(_double(_double(p))), _ZERO)


def _base() -> Point:
    y = 4 * pow(5, _P - 2, _P) % _P
    x = _x_of(y, 0)
    assert x is not None, "the base point of the RFC is on the curve"
    return x, y, 1, x * y % _P


_BASE = _base()
