"""Why a live kernel is not lifted: one stable code and one sentence."""

from __future__ import annotations

from retuned.errors import Refused

MORE = "needs-more-launches"
"""Code of what further launches may settle: everything else is final for this source."""
_LONGEST = 400


class NotLifted(Refused):
    """A live kernel that does not become a definition; it keeps running as it is.

    Parameters
    ----------
    reason
        Stable code, kebab-case, such as ``atomic-output``.
    detail
        What does not fit; made harmless, because it may quote a stranger's text.
    """

    def __init__(self, reason: str, *, detail: str) -> None:
        super().__init__(f"{harmless(detail)} [{reason}]")
        self.code = reason
        self.message = harmless(detail)


def harmless(text: object) -> str:
    r"""Return a stranger's text without control characters and not too long.

    Examples
    --------
    >>> harmless("a\x1b[31mb")
    'a?[31mb'
    """
    return "".join(letter if " " <= letter <= "~" else "?" for letter in str(text)[:_LONGEST])
