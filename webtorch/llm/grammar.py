"""What an answer may be: JSON, JSON of a schema, or a grammar, as the tokens that may come next (llguidance)."""

from __future__ import annotations

import array
import json
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from webtorch.errors import WebtorchError
from webtorch.llm.tokens import Tokens, bytes_of

# Between the words of JSON: an answer is no endless space.
_FREE = {"whitespace_pattern": r"[ \t\r\n]{0,16}"}
_PLAIN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Longer ones are no grammar.
_MOST = 1 << 20


class GrammarError(WebtorchError, ValueError):
    """A grammar or a schema is wrong, too large, or asks for what is not there."""


def _library() -> Any:
    try:
        import llguidance
    except ImportError:
        raise GrammarError("grammars need llguidance: pip install llguidance") from None
    return llguidance


@dataclass(frozen=True)
class Grammar:
    """A grammar, as llguidance has it."""

    text: str

    @classmethod
    def of_schema(cls, schema: Any = None, plain: bool = False) -> Grammar:
        """Return that of a JSON schema, by default of any object; plain: with the spaces that `json.dumps` writes.

        Raises GrammarError for what is none.
        """
        try:
            text = json.dumps({"type": "object"} if schema is None else schema)
            make = _library().LLMatcher.grammar_from_json_schema
            return cls(make(_short(text), defaults=_PLAIN if plain else _FREE))
        except (ValueError, TypeError, RecursionError) as error:
            raise GrammarError(f"the schema: {error}") from None

    @classmethod
    def of_gbnf(cls, text: str) -> Grammar:
        """Return that of a text in GBNF, as llama.cpp has it, or in Lark's. Raises GrammarError for what is none."""
        matcher = _library().LLMatcher
        from llguidance.gbnf_to_lark import any_to_lark

        try:
            return cls(matcher.grammar_from_lark(any_to_lark(_short(text))))
        except Exception as error:
            raise GrammarError(f"the grammar: {error}") from None


def _short(text: str) -> str:
    if len(text) > _MOST:
        raise GrammarError(f"a grammar has at most {_MOST:,} letters")
    return text


def _first(matcher: Any) -> str:
    """Return what a matcher says is wrong, without what it is in the middle of."""
    return str(matcher.get_error()).partition("\n<state>")[0].strip()


class _Words:
    """A tokenizer as llguidance reads it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokens, end: int, vocabulary: int) -> None:
        hidden = tokenizer.hidden()
        texts = {n: t.encode() for t, n in tokenizer.special.items()}
        special = {n: b"\xff" + texts.get(n, b"<>") for n in hidden}
        self.tokenizer, self.eos_token_id = tokenizer, end
        self.special_token_ids = sorted(hidden)
        # The last: numbers of the model's that no token has.
        self.tokens = [
            special.get(i) or bytes_of(tokenizer, i) or b"\xff<%d>" % i for i in range(vocabulary)
        ]

    def __call__(self, text: bytes | str) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self.tokenizer.encode(text, add_special_tokens=False)


class Grammars:
    """Makes what answers are constrained by, with the tokens of one model."""

    def __init__(self, tokenizer: Tokens, ends: Collection[int], vocabulary: int) -> None:
        """Take a tokenizer, the tokens that end an answer, and how many tokens the model knows."""
        known = sorted(e for e in ends if 0 <= e < vocabulary)
        if not known:
            raise GrammarError("no token ends an answer of this model")
        library = _library()
        words = library.TokenizerWrapper(_Words(tokenizer, known[0], vocabulary))
        self.known = library.LLTokenizer(words, vocabulary, known)
        self.matcher, self.width = library.LLMatcher, -(-vocabulary // 32)

    def constraint(self, grammar: Grammar) -> Following:
        """Return what follows an answer from its beginning. Raises GrammarError for a grammar that is wrong."""
        matcher = self.matcher(self.known, grammar.text, log_level=0)
        if matcher.is_error():
            raise GrammarError(f"the grammar: {_first(matcher)}")
        return Following(matcher, self.width)


class Following:
    """Where an answer is in its grammar."""

    def __init__(self, matcher: Any, width: int) -> None:
        """Begin; width: how many ints of 32 the vocabulary has."""
        self.matcher, self.width = matcher, width

    def allowed(self) -> list[int]:
        """Return a bit for each token that may come, in ints of 32."""
        words = array.array("i")
        words.frombytes(self.matcher.compute_bitmask())
        if sys.byteorder == "big":
            words.byteswap()
        self._check()
        return words.tolist()[: self.width]

    def take(self, token: int) -> bool:
        """Go on by a token; return whether none may follow."""
        self.matcher.consume_token(token)
        self._check()
        return bool(self.matcher.is_stopped())

    def _check(self) -> None:
        if self.matcher.is_error():
            raise GrammarError(f"the grammar: {_first(self.matcher)}")
