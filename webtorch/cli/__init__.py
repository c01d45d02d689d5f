"""The `webtorch` command: its options. What a command does is in the file of its name, loaded when it is run.

Exit codes: 0 all is well, 1 the work failed (a device that fails, data that is missing), 2 the
command line is wrong, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import io
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from webtorch.cli.messages import complain, in_a_sentence, package_version
from webtorch.errors import WebtorchError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    # A console of Windows may lack signs that are printed: it shows others, rather than that a command fails.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    parser = _parser()
    words = sys.argv[1:] if argv is None else argv
    if words and words[0].startswith("-") and words[0] not in ("-h", "--help", "--version"):
        parser.error(f"options stand behind the command: webtorch COMMAND {words[0]}")
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        options.parser.error(f"it has no {' '.join(unknown)}; --help lists what it has")
    if options.command is None:
        parser.print_help()
        return 2
    try:
        # Only what the command needs is loaded; its packages may be absent for the others.
        command = importlib.import_module(f"webtorch.cli.{options.command}")
        with warnings.catch_warnings():
            if options.command != "run":  # there they are the program's
                warnings.showwarning = lambda message, *_, **__: complain(str(message))
            return int(command.main(options, importlib.import_module("rich.console").Console()))
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    except (WebtorchError, OSError) as error:
        complain(in_a_sentence(error))
        return 1


class _Commands:
    """Collects the commands, each of which the `main` of a module runs."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parsers = parser.add_subparsers(title="commands", metavar="COMMAND")
        self.on_device = argparse.ArgumentParser(add_help=False)
        self.on_device.add_argument(
            "--device", type=_device, metavar="cpu|webgpu",
            help="where to run (default: WebGPU where the adapter is hardware, else the CPU)",
        )  # fmt: skip

    def add(
        self, name: str, module: str = "", *, on_device: bool = False, **told: Any
    ) -> argparse.ArgumentParser:
        """Add a command, which the module of its name runs; with `on_device`, where it is told to."""
        parents = [self.on_device] if on_device else []
        command = self.parsers.add_parser(name, allow_abbrev=False, parents=parents, **told)
        command.set_defaults(command=module or name, parser=command)
        return command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="webtorch", description="PyTorch wherever WebGPU runs.", allow_abbrev=False
    )
    parser.add_argument(
        "--version", action="version", version=f"webtorch {package_version('webtorch') or 'source'}"
    )
    parser.set_defaults(command=None, parser=parser)
    commands = _Commands(parser)
    for add in (
        _demo, _serve, _playground, _lite, _check, _testpage, _doctor, _run, _convert, _tune, _cache,
        _chat, _generate, _serve_llm, _quantize, _finetune, _export_llm, _merge,
    ):  # fmt: skip
        add(commands)
    return parser


def _demo(commands: _Commands) -> None:
    command = commands.add(
        "demo",
        "demo.command",
        on_device=True,
        help="train a real network on real data, and write a report",
        description="Train a network, then write webtorch-demo/report.html. `digits` (the default) is "
        "a CNN on handwritten digits; `gpt` is a character GPT on the source of Python's standard "
        "library.",
    )
    command.add_argument(
        "what", nargs="?", choices=("digits", "gpt"), default="digits", metavar="digits|gpt",
        help="the network (default digits)",
    )  # fmt: skip
    command.add_argument(
        "--preset", choices=("tiny", "small", "base"),
        help="gpt: size of the model (default tiny; base has 10.8 million parameters)",
    )  # fmt: skip
    command.add_argument(
        "--epochs", type=_positive, metavar="N",
        help="how long to train (gpt: an epoch is a few hundred steps)",
    )  # fmt: skip
    command.add_argument(
        "--seed", type=int, default=0, help="of weights, batches and dropout (default 0)"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write the final figures there")
    command.add_argument(
        "--quick", action="store_true", help="a run of seconds, to see that it works"
    )
    command.add_argument(
        "--export", type=Path, metavar="PATH",
        help="write a page in which the network trains on in a browser: a folder, or one file (*.html)",
    )  # fmt: skip


def _serve(commands: _Commands) -> None:
    command = commands.add(
        "serve",
        help="show an exported page in the browser",
        description="Serve a folder that webtorch.export wrote, on 127.0.0.1 only, and open it in the "
        "browser, until interrupted.",
    )
    command.add_argument(
        "folder", type=Path, metavar="DIR", help="a folder that webtorch.export wrote"
    )
    command.add_argument(
        "--port", type=_port, metavar="N", help="of the address (default 8000; else a free one)"
    )
    command.add_argument("--no-browser", action="store_true", help="print the address only")


def _playground(commands: _Commands) -> None:
    command = commands.add(
        "playground",
        help="write a page in which Python and webtorch run in the browser",
        description="Write a static folder with an editor, in which Python itself (Pyodide) runs in the tab with "
        "this webtorch on the tab's WebGPU. `webtorch serve DIR` shows it.",
    )
    command.add_argument("folder", type=Path, metavar="DIR", help="the folder to write")
    command.add_argument(
        "--pyodide", type=Path, metavar="FOLDER",
        help="the npm package pyodide (default: WEBTORCH_PYODIDE, ./node_modules/pyodide, else npm fetches it)",
    )  # fmt: skip
    command.add_argument(
        "--packages", nargs="+", default=[], metavar="NAME",
        help="packages of Pyodide that programs may import: numpy, matplotlib, tqdm ...",
    )  # fmt: skip


def _lite(commands: _Commands) -> None:
    command = commands.add(
        "lite",
        help="write JupyterLite with webtorch in its kernel",
        description="Write a static folder with JupyterLite, whose kernel runs in the tab and in which `import torch` "
        "means webtorch. Needs the extra webtorch[lite]. `webtorch serve DIR` shows it.",
    )
    command.add_argument("folder", type=Path, metavar="DIR", help="the folder to write")
    command.add_argument(
        "--pyodide",
        type=Path,
        metavar="FOLDER",
        help="the npm package pyodide (default: as for playground)",
    )


def _check(commands: _Commands) -> None:
    command = commands.add(
        "check",
        help="compare an exported page on the CPU, on WebGPU and in a browser",
        description="Run every function of a folder that webtorch.export wrote on its first example: "
        "natively on the CPU, natively on WebGPU, and in headless Chromium (with Playwright); print "
        "how far each is from the CPU. Exit code 0 only when all of them ran and agree.",
    )
    command.add_argument(
        "folder", type=Path, metavar="DIR", help="a folder that webtorch.export wrote"
    )


def _testpage(commands: _Commands) -> None:
    command = commands.add(
        "testpage",
        "testpage.command",
        help="write a page that tests every operation on WebGPU in the browser",
        description="Record every operation of the table with PyTorch's results (PyTorch must be "
        "installed) and write a page that computes them on WebGPU in the tab and compares; "
        "`webtorch serve DIR` shows it. With --run it runs in headless browsers here, and the exit "
        "code is 0 only when all passes.",
    )
    command.add_argument("folder", type=Path, metavar="DIR", help="the folder to write")
    command.add_argument(
        "--only", nargs="+", metavar="NAME", help="operations of the table (default: all of them)"
    )
    command.add_argument(
        "--calls", type=_positive, default=4, metavar="N", help="at most for each (default 4)"
    )
    command.add_argument(
        "--run",
        action="store_true",
        help="run it in Chromium, and in Firefox where that is installed",
    )


def _doctor(commands: _Commands) -> None:
    command = commands.add(
        "doctor",
        on_device=True,
        help="list adapters, say which is used and why, and test it",
        description="List Python, packages and every WebGPU adapter, and test each kernel family on "
        "the device in use. Exit code 0 only when it passes.",
    )
    command.add_argument(
        "--report", type=Path, metavar="FILE", nargs="?", const=Path("webtorch-report.json"),
        help="write all of it there, to attach to an issue (default: webtorch-report.json)",
    )  # fmt: skip


def _run(commands: _Commands) -> None:
    command = commands.add(
        "run",
        on_device=True,
        help="run a PyTorch program unchanged",
        description="Run a Python program in which `import torch` means webtorch, also in the packages "
        "that it imports. Its arguments follow its name.",
        usage="webtorch run [--device cpu|webgpu] (program.py | -m module) [arguments ...]",
    )
    command.add_argument("-m", action="store_true", dest="module", help="the name is a module's")
    command.add_argument("program", help="a Python file, or a module with -m")
    # Python 3.11 and 3.12 would list them among the arguments that are required.
    command.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="the program's own"
    ).required = False


def _convert(commands: _Commands) -> None:
    command = commands.add(
        "convert",
        help="write a checkpoint in another format",
        description="Read the weights of a PyTorch file (.pt, .pth, .bin, .ckpt; nothing in it is executed), of "
        "safetensors (a file, an index or a folder) or of GGUF, and write them as the ending of the "
        "target says.",
    )
    command.add_argument("source", type=Path, help="what to read")
    command.add_argument("target", type=Path, help="what to write: .pt, .safetensors or .gguf")
    command.add_argument("--dtype", metavar="TYPE", help="of floats: float32, float16, bfloat16")
    command.add_argument(
        "--rename", nargs=2, action="append", default=[], metavar=("PATTERN", "NEW"),
        help="as Python's re.sub, on every name; may be given again",
    )  # fmt: skip
    command.add_argument(
        "--keep", metavar="PATTERN", help="only tensors in whose name this is found"
    )


def _tune(commands: _Commands) -> None:
    command = commands.add(
        "tune",
        help="measure which kernels are fastest for matrix products on this adapter",
        description="Measure the kernels that could compute matrix products, in float32, check each "
        "against the generic kernel, and use the fastest from now on (in every process; `webtorch "
        "doctor` lists them). WEBTORCH_TUNE=1 does this for every product that a program meets.",
    )
    command.add_argument(
        "shapes", nargs="*", type=_shape, metavar="MxKxN",
        help="products to measure: rows x inner x columns (default: 512 to 2048, all layouts)",
    )  # fmt: skip
    command.add_argument(
        "--device", type=_device, default="webgpu", metavar="webgpu[:N]", help="which adapter"
    )
    command.add_argument(
        "--seconds", type=_positive, default=30, metavar="N", help="at most for each (default 30)"
    )


def _cache(commands: _Commands) -> None:
    command = commands.add(
        "cache",
        help="show what is kept on disk, or remove it",
        description="Show where compiled programs, machine code and tuned sizes are kept, and how much "
        "there is. WEBTORCH_CACHE_DIR names another folder, WEBTORCH_CACHE=0 keeps nothing.",
    )
    command.add_argument(
        "--clear", action="store_true", help="remove programs and machine code; tuned sizes stay"
    )


def _chat(commands: _Commands) -> None:
    command = commands.add(
        "chat",
        on_device=True,
        help="talk with a language model",
        description="Load a GGUF file, or a folder of Hugging Face's, and talk. /system, /load, /new and /help "
        "do more.",
    )
    _add_model(command)
    command.add_argument("--system", metavar="TEXT", help="what the model is told first")
    _add_sampling(command)


def _generate(commands: _Commands) -> None:
    command = commands.add(
        "generate",
        on_device=True,
        help="let a language model go on with a text",
        description="Print the text that follows a prompt.",
    )
    _add_model(command)
    command.add_argument("prompt", help="the text; - reads it from standard input")
    _add_sampling(command)


def _serve_llm(commands: _Commands) -> None:
    command = commands.add(
        "serve-llm",
        "serve_llm",
        on_device=True,
        help="put a language model behind OpenAI's interface",
        description="Serve /v1/chat/completions, /v1/completions, /v1/embeddings and /v1/models until "
        "interrupted.",
    )
    _add_model(command)
    command.add_argument("--host", default="127.0.0.1", help="where to listen (default 127.0.0.1)")
    command.add_argument(
        "--port", type=_port, default=8080, metavar="N", help="of the address (default 8080)"
    )
    command.add_argument(
        "--api-key", metavar="KEY", help="what clients must send (or WEBTORCH_API_KEY)"
    )
    command.add_argument(
        "--texts", type=_positive, default=2, metavar="N", help="answered at once (default 2)"
    )


def _add_model(command: argparse.ArgumentParser) -> None:
    """Add the model that a command loads, and how."""
    command.add_argument("model", type=Path, help="a GGUF file, or a folder with safetensors")
    command.add_argument(
        "--context", type=_positive, metavar="N",
        help="tokens of a text at most (default 4096, or as many as fit)",
    )  # fmt: skip
    command.add_argument(
        "--dtype",
        choices=("float32", "float16", "bfloat16"),
        help="of weights (default float32)",
    )
    command.add_argument(
        "--lora",
        type=Path,
        metavar="PATH",
        help="an adapter: PEFT's folder, or llama.cpp's GGUF file",
    )
    command.add_argument(
        "--draft",
        type=Path,
        metavar="FILE",
        help="a smaller model with the same tokenizer, which makes answers faster",
    )
    command.add_argument(
        "--cache",
        choices=("float32", "float16", "int8"),
        help="of keys and values (default float32)",
    )


def _add_sampling(command: argparse.ArgumentParser) -> None:
    """Add how the tokens of an answer are drawn."""
    command.add_argument("--max-tokens", type=_positive, metavar="N", help="of an answer")
    for name, kind, usual, text in (
        ("temperature", float, 0.8, "above 1 draws more freely, 0 takes the likeliest token"),
        ("top-k", int, 40, "draw among so many likeliest tokens"),
        ("top-p", float, 0.95, "draw among the likeliest, which together have this probability"),
        ("min-p", float, 0.05, "leave out what is less likely than this share of the likeliest"),
        ("repetition-penalty", float, 1.0, "above 1 avoids tokens that were there before"),
    ):
        command.add_argument(
            f"--{name}", type=kind, default=usual, metavar="X", help=f"{text} (default {usual})"
        )
    command.add_argument("--seed", type=int, metavar="N", help="the same one draws the same")


def _quantize(commands: _Commands) -> None:
    command = commands.add(
        "quantize",
        on_device=True,
        help="pack the weights of a language model",
        description="Read a GGUF file, or a folder of Hugging Face's, and write a GGUF file with packed matrices.",
    )
    command.add_argument("model", type=Path, help="a GGUF file, or a folder with safetensors")
    command.add_argument("target", type=Path, help="the GGUF file to write")
    command.add_argument(
        "--format",
        default="Q8_0",
        metavar="NAME",
        help="Q4_0, Q6_K, ..., or a mix of llama.cpp's: Q4_K_M, ... (default Q8_0)",
    )


def _finetune(commands: _Commands) -> None:
    command = commands.add(
        "finetune",
        on_device=True,
        help="let a language model learn examples",
        description="Train an adapter (LoRA) beside the weights of a model, packed or not. A line of the data is an "
        'object: {"messages": [...]}, of which the answers are learned, {"prompt": ..., "completion": ...} or '
        '{"text": ...}.',
    )
    command.add_argument("model", type=Path, help="a GGUF file, or a folder with safetensors")
    command.add_argument("data", type=Path, help="the examples: lines of JSON")
    command.add_argument(
        "--output", type=Path, metavar="DIR", help="where the adapter goes (default MODEL-lora)"
    )
    command.add_argument("--resume", action="store_true", help="go on with the run of the folder")
    command.add_argument(
        "--targets", nargs="+", metavar="NAME", help="layers: q_proj, v_proj ... (default: all)"
    )
    command.add_argument(
        "--dtype",
        choices=("float32", "float16", "bfloat16"),
        help="of weights that are floats (default float32)",
    )
    for name, kind, text in (
        ("rank", _positive, "of the adapter (default 16)"),
        ("alpha", float, "its scale is alpha / rank (default 2 * rank)"),
        ("dropout", float, "of what goes into the adapter (default 0)"),
        ("lr", float, "the learning rate (default 0.0002)"),
        ("epochs", float, "how often the examples are seen (default 1)"),
        ("steps", _positive, "instead of epochs"),
        ("batch", _positive, "examples at once (default 4)"),
        ("accumulation", _positive, "batches of a step (default 1)"),
        ("length", _positive, "tokens of an example at most (default 1024)"),
        ("seed", int, "of the adapter and the order (default 0)"),
        ("validation", float, "the part of the examples that is kept back (default 0)"),
        ("save-every", _positive, "steps between files of it (default 100)"),
    ):
        command.add_argument(f"--{name}", type=kind, metavar="N", help=text)


def _export_llm(commands: _Commands) -> None:
    command = commands.add(
        "export-llm",
        "export_llm",
        help="write a page that chats with a language model in a tab",
        description="Write a static folder for a GGUF file, which the page is given, or fetches from --url.",
    )
    command.add_argument("model", type=Path, help="a GGUF file")
    command.add_argument("folder", type=Path, metavar="DIR", help="the folder to write")
    command.add_argument(
        "--url", help="where the page finds the file: an address, or a path beside the page"
    )
    command.add_argument(
        "--context",
        type=_positive,
        default=2048,
        metavar="N",
        help="tokens of a conversation (default 2048)",
    )


def _merge(commands: _Commands) -> None:
    command = commands.add(
        "merge",
        help="put an adapter into the weights of a language model",
        description="Read a model and an adapter (PEFT's folder, or llama.cpp's GGUF), and write a GGUF file with "
        "both. Packed matrices are packed again.",
    )
    command.add_argument("model", type=Path, help="a GGUF file, or a folder with safetensors")
    command.add_argument("adapter", type=Path, help="a folder of PEFT's, or a GGUF file")
    command.add_argument("target", type=Path, help="the GGUF file to write")
    command.add_argument(
        "--format", metavar="NAME", help="of all matrices: Q8_0, Q4_0, ... (default: as they are)"
    )


def _shape(text: str) -> tuple[int, int, int]:
    sizes = [int(s) if s.isdigit() else 0 for s in text.lower().split("x")]
    if len(sizes) != 3 or min(sizes) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no product: say rows x inner x columns, 512x384x1536"
        )
    return sizes[0], sizes[1], sizes[2]


def _device(text: str) -> str:
    kind, colon, index = text.partition(":")
    if kind not in ("cpu", "webgpu") or (colon and not index.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no device: say cpu, webgpu or webgpu:1")
    return text


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return value


def _port(text: str) -> int:
    value = _positive(text)
    if value > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: they end at 65535")
    return value
