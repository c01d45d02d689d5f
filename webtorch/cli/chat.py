"""`webtorch chat`: a conversation with a language model. Also what the commands of language models share."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from webtorch.cli.doctor import choose_device
from webtorch.cli.messages import complain
from webtorch.errors import WebtorchError
from webtorch.functions import public as webtorch
from webtorch.io import GGUFError, TokenizerError
from webtorch.io.safetensors import SafetensorError
from webtorch.llm import Answer, LanguageModel, Sampling, load
from webtorch.llm.batch import ContextFullError
from webtorch.llm.memory import parameter_count
from webtorch.llm.template import Message

_HELP = """/system TEXT   what the model is told first (alone: nothing); begins anew
/load FILE     another model
/lora FILE     another adapter (alone: none); begins anew
/new           begin anew
/help          this
/quit          end (also Ctrl+D); Ctrl+C ends an answer, or a line"""

# Of fewer tokens it is not said how fast they came: some of them are computed together.
_FEW = 8


def sampling_of(options: argparse.Namespace) -> Sampling:
    """Return what the command line says of how tokens are drawn. Raises ValueError for what is out of range."""
    return Sampling(
        options.temperature,
        options.top_k,
        options.top_p,
        options.min_p,
        options.repetition_penalty,
        options.seed,
    )


def load_told(
    options: argparse.Namespace, console: Console, path: Path | None = None, texts: int = 1
) -> LanguageModel:
    """Return the model of the command line, and say where it is and what it takes."""
    choice = choose_device(options.device)
    model = load(
        path or options.model, choice.device, context=options.context, texts=texts,
        dtype=getattr(webtorch, options.dtype) if options.dtype else None,
        cache=getattr(webtorch, options.cache) if options.cache else None,
        draft=options.draft if path is None else None,
    )  # fmt: skip
    if options.lora and path is None:
        model.adapt(options.lora)
    config = model.model.config
    count = parameter_count(config)
    say = f"{config.architecture}, {count / 1e6:,.1f} million parameters, on {choice.device} ({choice.name})"
    console.print(f"{say}\n{model.needs}", style="dim", highlight=False, soft_wrap=True)
    return model


def print_answer(answer: Answer, console: Console, context: int) -> str:
    """Print an answer as it comes, then how fast it was, and whether the context of so many tokens is full; Ctrl+C
    ends it. Returns the text.
    """
    parts = []
    try:
        for piece in answer:
            parts.append(piece)
            sys.stdout.write(piece)
            sys.stdout.flush()
    except KeyboardInterrupt:
        answer.close()
    sys.stdout.write("\n")
    count = len(answer.tokens)
    said = f"{count} tokens" if count != 1 else "1 token"
    if count >= _FEW:
        said += f", {answer.speed:.1f} a second"
    if answer.finish == "length":
        full = len(answer.prompt) + len(answer.tokens) >= context
        said += f"; the context of {context} is full" if full else "; as many as were asked for"
    console.print(said, style="dim", highlight=False)
    return "".join(parts)


@contextlib.contextmanager
def in_words() -> Any:
    """Turn errors of files and options into those that commands report."""
    try:
        yield
    except (GGUFError, SafetensorError, TokenizerError, ValueError) as error:
        if isinstance(error, WebtorchError):
            raise
        raise WebtorchError(str(error)) from error


class Talk:
    """A conversation: what was said, and the model."""

    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        """Load the model."""
        self.options, self.console = options, console
        self.system: str | None = options.system
        self.sampling = sampling_of(options)
        self.model = load_told(options, console)
        self.said: list[Message] = []

    def begin(self) -> None:
        """Forget what was said."""
        self.said = []

    def ask(self, question: str) -> None:
        """Answer, and remember both; where an answer fails, neither."""
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        said = [*self.said, {"role": "user", "content": question}]
        answer = self.model.chat([*first, *said], self.sampling, most=self.options.max_tokens)
        text = print_answer(answer, self.console, self.model.context)
        self.said = [*said, {"role": "assistant", "content": text}]

    def obey(self, line: str) -> bool:
        """Do what a line with a slash says. Returns whether the conversation goes on."""
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        match name:
            case "/quit" | "/exit":
                return False
            case "/new":
                self.begin()
            case "/system":
                self.system = rest or None
                self.begin()
            case "/load" if rest:
                self.model = load_told(self.options, self.console, Path(rest))
                self.begin()
            case "/lora":
                self.model.adapt(rest or None)
                self.begin()
            case _:
                self.console.print(_HELP, highlight=False)
        return True


def main(options: argparse.Namespace, console: Console) -> int:
    """Talk until the input ends."""
    with in_words():
        talk = Talk(options, console)
    if sys.stdin.isatty():
        console.print("Ask; /help says what else there is.", style="dim", highlight=False)
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return 0
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            # Who wants to end an answer may come too late: what was said stays.
            console.print("\n/quit or Ctrl+D ends", style="dim", highlight=False)
            continue
        try:
            with in_words():
                if line.startswith("/"):
                    if not talk.obey(line):
                        return 0
                elif line:
                    talk.ask(line)
        except KeyboardInterrupt:
            # While a file loads, say: the model before it stays.
            complain("interrupted")
        except ContextFullError as error:
            complain(f"{error}; /new begins anew")
        except (WebtorchError, OSError) as error:
            complain(str(error))
