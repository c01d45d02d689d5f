"""Tokens that are texts as a whole: where they stand in a text, by the rules of Hugging Face's tokenizer.json. Floor 5.

The text between them is normalised, and cut by the tokenizer itself.
"""

from __future__ import annotations

import contextlib
import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

# Names of the rules in tokenizer.json, and forms of Unicode.
RULES = ("lstrip", "rstrip", "single_word", "normalized")
FORMS = ("NFC", "NFD", "NFKC", "NFKD")
_WORD = re.compile(r"\w")
# More would be no tokens but a damaged number.
_MOST_TOKENS = 1 << 24


class TokenizerError(ValueError):
    """A tokenizer file is damaged, or of a kind that is not read here."""


@contextlib.contextmanager
def reading(place: str) -> Iterator[None]:
    """Let errors of what reads a tokenizer.json say which file is damaged."""
    try:
        yield
    except TokenizerError as error:
        raise TokenizerError(f"{place}: {error}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{place}: it is no JSON: {error}") from None
    except KeyError as error:
        raise TokenizerError(f"{place}: the entry {error} is missing") from None
    except (ValueError, TypeError, AttributeError, IndexError, StopIteration) as error:
        raise TokenizerError(f"{place}: an entry is none of a tokenizer.json: {error}") from None
    except (RecursionError, OverflowError) as error:
        raise TokenizerError(f"{place}: {type(error).__name__}: {error}") from None


def numbered(entries: Iterable[tuple[object, object]]) -> dict[str, int]:
    """Return tokens and their numbers. Raises TokenizerError for others than texts and numbers from 0 on."""
    out: dict[str, int] = {}
    for text, number in entries:
        if (
            not isinstance(number, int)
            or isinstance(number, bool)
            or not 0 <= number < _MOST_TOKENS
            or not isinstance(text, str)
        ):
            raise TokenizerError(f"the token {text!r:.80} has the number {number!r:.80}")
        out[text] = number
    return out


class Added:
    """Finds tokens in texts: of those that begin at one place the longest."""

    def __init__(
        self,
        tokens: Mapping[str, int],
        rules: Mapping[str, frozenset[str]],
        normalise: Callable[[str], str],
    ) -> None:
        """Take the tokens, the rules of those that have some (RULES), and what is done with the text between them.

        lstrip, rstrip: white space on that side goes. single_word: letters beside it make it none. normalized: it
        stands in the text that has been normalised, as its own has.
        """
        self._rules, self._normalise = rules, normalise
        late = {t for t, r in rules.items() if "normalized" in r}
        self._first = _table(t for t in tokens.items() if t[0] not in late)
        self._second = _table((normalise(t), n) for t, n in tokens.items() if t in late)
        self._names = {n: t for t, n in tokens.items()}
        # What a token is when it is read back: what stands for it in the text where it is looked for.
        self.texts = {n: normalise(t) if t in late else t for t, n in tokens.items()}

    def split(self, text: str) -> Iterator[tuple[int | None, str, bool]]:
        """Yield the parts of a text in order: a token's number, or None, a normalised text, and whether it begins."""
        for number, part, at in self._cut(self._first, text):
            if number is not None:
                yield number, "", False
                continue
            for inner, piece, begin in self._cut(self._second, self._normalise(part)):
                yield inner, piece, at == begin == 0

    def _cut(
        self, table: tuple[re.Pattern[str], dict[str, int]] | None, text: str
    ) -> Iterator[tuple[int | None, str, int]]:
        if table is None:
            yield None, text, 0
            return
        at = 0
        for found in table[0].finditer(text):
            number, (begin, end) = table[1][found.group()], found.span()
            rules = self._rules.get(self._names[number], ())
            if "single_word" in rules and (
                _WORD.match(text[begin - 1 : begin]) or _WORD.match(text, end)
            ):
                continue
            while "lstrip" in rules and begin > at and text[begin - 1].isspace():
                begin -= 1
            while "rstrip" in rules and end < len(text) and text[end].isspace():
                end += 1
            if begin > at:
                yield None, text[at:begin], at
            yield number, "", begin
            at = end
        if at < len(text):
            yield None, text[at:], at


def _table(tokens: Any) -> tuple[re.Pattern[str], dict[str, int]] | None:
    """Return an expression that finds texts, and their numbers."""
    found: dict[str, int] = {}
    for text, number in tokens:
        if text:
            found.setdefault(text, number)
    names = sorted(found, key=len, reverse=True)
    return (re.compile("|".join(map(re.escape, names))), found) if names else None


def in_form(form: str, text: str) -> str:
    """Return a text in a form of Unicode ("NFC", ...), or as it is ("")."""
    return unicodedata.normalize(form, text) if form else text  # type: ignore[arg-type]


def facts(
    special: Mapping[str, int], kept: Collection[str], rules: Mapping[str, frozenset[str]]
) -> list[dict[str, object]]:
    """Return what a tokenizer.json says of added tokens: the other way of `told`."""
    return [
        {"id": n, "content": t, "special": t not in kept}
        | {r: r in rules.get(t, ()) for r in RULES}
        for t, n in sorted(special.items(), key=lambda item: item[1])
    ]


def told(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the contents of a tokenizer.json say of added tokens, as tokenizers take it."""
    added = data.get("added_tokens") or ()
    rules = {t["content"]: frozenset(r for r in RULES if t.get(r)) for t in added}
    return {
        "special": numbered((t["content"], t["id"]) for t in added),
        "kept": [t["content"] for t in added if not t.get("special", True)],
        "rules": {t: r for t, r in rules.items() if r},
    }
