"""The `webtorch` command. Floor 6; imports a command's module when it is run.

Exit codes: 0 all is well, 1 the work failed (a device that fails, data that is missing), 2 the
command line is wrong, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from webtorch.demo.report import Machine
    from webtorch.doctor import Choice
    from webtorch.web.program_json import Json


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    command: Callable[[argparse.Namespace, Console], int] | None = options.command
    if command is None:
        parser.print_help()
        return 2

    from rich.console import Console

    from webtorch.errors import WebtorchError

    console = Console()
    try:
        return command(options, console)
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130
    except (WebtorchError, OSError) as error:
        _complain(str(error))
        return 1


def _parser() -> argparse.ArgumentParser:
    from webtorch.doctor import package_version

    parser = argparse.ArgumentParser(
        prog="webtorch", description="PyTorch wherever WebGPU runs.", allow_abbrev=False
    )
    parser.add_argument(
        "--version", action="version", version=f"webtorch {package_version('webtorch') or 'source'}"
    )
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--device", type=_device, metavar="cpu|webgpu",
        help="where to run (default: WebGPU where the adapter is hardware, else the CPU)",
    )  # fmt: skip

    demo = commands.add_parser(
        "demo",
        parents=[common],
        help="train a real network on real data, and write a report",
        description="Train a network, then write webtorch-demo/report.html. `digits` (the default) is "
        "a CNN on handwritten digits; `gpt` is a character GPT on the source of Python's standard "
        "library.",
        allow_abbrev=False,
    )
    demo.add_argument("what", nargs="?", choices=("digits", "gpt"), default="digits")
    demo.add_argument(
        "--preset", choices=("tiny", "small", "base"),
        help="gpt: size of the model (default tiny; base has 10.7 million parameters)",
    )  # fmt: skip
    demo.add_argument(
        "--epochs", type=_positive, metavar="N",
        help="how long to train (gpt: an epoch is a few hundred steps)",
    )  # fmt: skip
    demo.add_argument(
        "--seed", type=int, default=0, help="of weights, batches and dropout (default 0)"
    )
    demo.add_argument("--json", type=Path, metavar="FILE", help="write the final figures there")
    demo.add_argument("--quick", action="store_true", help="a run of seconds, to see that it works")
    demo.add_argument(
        "--export", type=Path, metavar="PATH",
        help="write a page in which the network trains on in a browser: a folder, or one file (*.html)",
    )  # fmt: skip
    demo.set_defaults(command=_demo)

    serve = commands.add_parser(
        "serve",
        help="show an exported page in the browser",
        description="Serve a folder that webtorch.export wrote, on 127.0.0.1 only, and open it in the "
        "browser, until interrupted.",
        allow_abbrev=False,
    )
    serve.add_argument("folder", type=Path, metavar="DIR")
    serve.add_argument(
        "--port", type=_positive, default=8000, metavar="N", help="(default 8000; else a free one)"
    )
    serve.add_argument("--no-browser", action="store_true", help="print the address only")
    serve.set_defaults(command=_serve)

    playground = commands.add_parser(
        "playground",
        help="write a page in which Python and webtorch run in the browser",
        description="Write a static folder with an editor, in which Python itself (Pyodide) runs in the tab with "
        "this webtorch on the tab's WebGPU. `webtorch serve DIR` shows it.",
        allow_abbrev=False,
    )
    playground.add_argument("folder", type=Path, metavar="DIR")
    playground.add_argument(
        "--pyodide", type=Path, metavar="FOLDER",
        help="the npm package pyodide (default: WEBTORCH_PYODIDE, ./node_modules/pyodide, else npm fetches it)",
    )  # fmt: skip
    playground.set_defaults(command=_playground)

    check = commands.add_parser(
        "check",
        help="compare an exported page on the CPU, on WebGPU and in a browser",
        description="Run every function of a folder that webtorch.export wrote on its first example: "
        "natively on the CPU, natively on WebGPU, and in headless Chromium (with Playwright); print "
        "how far each is from the CPU. Exit code 0 only when all of them ran and agree.",
        allow_abbrev=False,
    )
    check.add_argument("folder", type=Path, metavar="DIR")
    check.set_defaults(command=_check)

    testpage = commands.add_parser(
        "testpage",
        help="write a page that tests every operation on WebGPU in the browser",
        description="Record every operation of the table with PyTorch's results (PyTorch must be "
        "installed) and write a page that computes them on WebGPU in the tab and compares; "
        "`webtorch serve DIR` shows it. With --run it runs in headless browsers here, and the exit "
        "code is 0 only when all passes.",
        allow_abbrev=False,
    )
    testpage.add_argument("folder", type=Path, metavar="DIR")
    testpage.add_argument(
        "--only", nargs="+", metavar="NAME", help="operations of the table (default: all of them)"
    )
    testpage.add_argument(
        "--calls", type=_positive, default=4, metavar="N", help="at most for each (default 4)"
    )
    testpage.add_argument(
        "--run",
        action="store_true",
        help="run it in Chromium, and in Firefox where that is installed",
    )
    testpage.set_defaults(command=_testpage)

    doctor = commands.add_parser(
        "doctor",
        parents=[common],
        help="list adapters, say which is used and why, and test it",
        description="List Python, packages and every WebGPU adapter, and test each kernel family on "
        "the device in use. Exit code 0 only when it passes.",
        allow_abbrev=False,
    )
    doctor.set_defaults(command=_doctor)

    run = commands.add_parser(
        "run",
        parents=[common],
        help="run a PyTorch program unchanged",
        description="Run a Python program in which `import torch` means webtorch, also in the packages "
        "that it imports. Its arguments follow its name.",
        usage="webtorch run [--device cpu|webgpu] (program.py | -m module) [arguments ...]",
        allow_abbrev=False,
    )
    run.add_argument("-m", action="store_true", dest="module", help="the name is a module's")
    run.add_argument("program", help="a Python file, or a module with -m")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own")
    run.set_defaults(command=_run)

    convert = commands.add_parser(
        "convert",
        help="write a checkpoint in another format",
        description="Read the weights of a PyTorch file (.pt, .pth, .bin, .ckpt; nothing in it is executed), of "
        "safetensors (a file, an index or a folder) or of GGUF, and write them as the ending of the "
        "target says.",
        allow_abbrev=False,
    )
    convert.add_argument("source", type=Path, help="what to read")
    convert.add_argument("target", type=Path, help="what to write: .pt, .safetensors or .gguf")
    convert.add_argument("--dtype", metavar="TYPE", help="of floats: float32, float16, bfloat16")
    convert.add_argument(
        "--rename", nargs=2, action="append", default=[], metavar=("PATTERN", "NEW"),
        help="as Python's re.sub, on every name; may be given again",
    )  # fmt: skip
    convert.add_argument(
        "--keep", metavar="PATTERN", help="only tensors in whose name this is found"
    )
    convert.set_defaults(command=_convert)

    tune = commands.add_parser(
        "tune",
        help="measure which kernels are fastest for matrix products on this adapter",
        description="Measure the kernels that could compute matrix products, in float32, check each "
        "against the generic kernel, and use the fastest from now on (in every process; `webtorch "
        "doctor` lists them). WEBTORCH_TUNE=1 does this for every product that a program meets.",
        allow_abbrev=False,
    )
    tune.add_argument(
        "shapes", nargs="*", type=_shape, metavar="MxKxN",
        help="products to measure: rows x inner x columns (default: 512 to 2048, all layouts)",
    )  # fmt: skip
    tune.add_argument(
        "--device", type=_device, default="webgpu", metavar="webgpu[:N]", help="which adapter"
    )
    tune.add_argument(
        "--seconds", type=_positive, default=30, metavar="N", help="at most for each (default 30)"
    )
    tune.set_defaults(command=_tune)

    cache = commands.add_parser(
        "cache",
        help="show what is kept on disk, or remove it",
        description="Show where compiled programs, machine code and tuned sizes are kept, and how much "
        "there is. WEBTORCH_CACHE_DIR names another folder, WEBTORCH_CACHE=0 keeps nothing.",
        allow_abbrev=False,
    )
    cache.add_argument(
        "--clear", action="store_true", help="remove programs and machine code; tuned sizes stay"
    )
    cache.set_defaults(command=_cache)
    return parser


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


def _serve(options: argparse.Namespace, console: Console) -> int:
    import webbrowser

    from webtorch.web.server import server

    try:
        running = server(options.folder, options.port)
    except FileNotFoundError:
        raise
    except OSError:
        # Another program has the port.
        running = server(options.folder)
    address = f"http://127.0.0.1:{running.server_address[1]}/"
    console.print(f"{options.folder} is at {address} (Ctrl+C ends)", highlight=False)
    if not options.no_browser:
        webbrowser.open(address)
    with running:
        running.serve_forever()
    return 0


def _playground(options: argparse.Namespace, console: Console) -> int:
    from webtorch.web.playground import build_playground

    folder = build_playground(options.folder, pyodide=options.pyodide)
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    console.print(
        f"{folder}: {size / 2**20:.0f} MiB; webtorch serve {folder} shows it",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    return 0


def _check(options: argparse.Namespace, console: Console) -> int:
    from rich.table import Table

    from webtorch.errors import WebtorchError
    from webtorch.web.check import Site, compare, in_browser

    site = Site(options.folder)
    if not site.functions():
        _complain("check: this export has no example inputs to run on")
        return 1
    cpu = {name: site.run(name, "cpu") for name in site.functions()}
    table = Table("function", "output", "compared", "largest difference", "largest value", "agree")
    bad = 0
    places: dict[str, Callable[[], dict[str, dict[str, list[float]]]]] = {
        "WebGPU": lambda: {name: site.run(name, "webgpu") for name in cpu},
        "Chromium": lambda: in_browser(options.folder, site),
    }
    for place, run in places.items():
        try:
            found = run()
        except WebtorchError as error:
            console.print(f"{place}: not compared: {error}", highlight=False, markup=False)
            bad += 1
            continue
        for row in compare(("CPU", place), cpu, found):
            bad += not row.agrees
            figures = f"{row.difference:.3g}", f"{row.largest:.3g}", "yes" if row.agrees else "NO"
            table.add_row(row.function, row.output, f"{row.first} - {row.second}", *figures)
    console.print(table)
    return 1 if bad else 0


def _testpage(options: argparse.Namespace, console: Console) -> int:
    from webtorch.web import recording, testpage
    from webtorch.web.browsers import find

    entries = recording.entries()
    if options.only:
        unknown = set(options.only) - {op.name for op in entries}
        if unknown:
            _complain(f"testpage: the table has no {', '.join(sorted(unknown))}")
            return 2
        entries = [op for op in entries if op.name in options.only]
    with console.status("recording") as status:
        written = testpage.write(
            options.folder, entries, most=options.calls,
            progress=lambda done, of: status.update(f"recording {done} of {of} operations"),
        )  # fmt: skip
    console.print(
        f"{options.folder}: {written.tests} tests of {written.entries} operations; "
        f"{written.left} have none (the page says why)",
        highlight=False,
    )
    if not options.run:
        return 0
    bad = 0
    for browser in ["chromium", *filter(find, ["firefox"])]:
        with console.status(browser) as status:

            def tell(progress: Json, name: str = browser, where: Status = status) -> None:
                """Show how far a browser's tests are."""
                if "done" in progress:
                    where.update(f"{name}: {progress['done']} of {progress['of']}")

            found = testpage.run(options.folder, browser, tell)
        if "error" in found:
            console.print(f"{browser}: {found['error']}", highlight=False, markup=False)
            bad += 1
            continue
        path = options.folder / f"{browser}.json"
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        bad += found["failed"] + found["waiting"]
        for test in found["tests"]:
            if test["status"] != "passed":
                line = f"{test['entry']}, {test['kind']}: {test['call']}: {test.get('why', test['status'])}"
                console.print(line, highlight=False, markup=False)
        console.print(
            f"{browser}, {found['device']}: {found['passed']} passed, {found['failed']} failed ({path})",
            highlight=False,
        )
    return 1 if bad else 0


def _doctor(options: argparse.Namespace, console: Console) -> int:
    from webtorch.doctor import examine

    return examine(console, options.device)


def _convert(options: argparse.Namespace, console: Console) -> int:
    """Write a checkpoint in another format."""
    from webtorch.io.conversion import ConvertError, convert, dtype_named

    try:
        found = convert(
            options.source, options.target, rename=[tuple(r) for r in options.rename], keep=options.keep,
            dtype=None if options.dtype is None else dtype_named(options.dtype),
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        _complain(str(error))
        return 2 if isinstance(error, ConvertError) else 1
    numbers = sum(t.numel() for t in found.values())
    console.print(f"{options.target}: {len(found)} tensors, {numbers:,} numbers", highlight=False)
    return 0


def _run(options: argparse.Namespace, console: Console) -> int:
    from webtorch.as_torch.program import run

    return run(options.program, options.arguments, module=options.module, device=options.device)


def _tune(options: argparse.Namespace, console: Console) -> int:
    from rich.table import Table

    from webtorch.errors import DeviceError
    from webtorch.runtime.backends import get_backend
    from webtorch.runtime.backends.webgpu import WebGPUBackend
    from webtorch.runtime.backends.webgpu.tuner import matmul_routine, table_path, tune

    kind, _, index = options.device.partition(":")
    device = get_backend(kind, int(index or 0))
    if not isinstance(device, WebGPUBackend):
        raise DeviceError(f"tune: {options.device!r} has no tiles to choose; use --device webgpu")
    sizes = (512, 1024, 2048) if device.limits.is_gpu else (128, 256)
    shapes = [(*shape, "nn") for shape in options.shapes] or [
        (size, size, size, layout) for size in sizes for layout in ("nn", "nt", "tn")
    ]
    table = Table("product", "class", "as shipped", "fastest", "gain", title=device.description())
    wrong = 0
    for m, k, n, layout in shapes:
        result = tune(device, matmul_routine(m, n, k, layout), options.seconds)
        if result is None:
            console.print(f"{m}x{k}x{n}: nothing to choose", highlight=False)
            continue
        wrong += sum(bool(x.problem) for x in result.measured)
        best, default = result.best, result.default
        row = [f"{m}x{k}x{n} {layout}", result.name]
        if best is None:
            row += [default.problem, "none is right", ""]
        else:
            flops = 2e-9 * m * n * k
            row += [f"{flops / x.seconds:.1f} GFLOP/s" for x in (default, best)]
            row.append(f"{default.seconds / best.seconds:.2f}x")
        table.add_row(*row)
    console.print(table)
    if wrong:
        console.print(
            f"{wrong} kernels were refused: their results differ from the generic kernel's."
        )
    console.print(f"kept in {table_path()}", highlight=False, soft_wrap=True)
    return 0


def _cache(options: argparse.Namespace, console: Console) -> int:
    from webtorch.runtime.backends.webgpu.tuner import table_path
    from webtorch.runtime.disk import SHELVES, enabled

    def say(text: str) -> None:
        """Print a line as it is."""
        console.print(text, highlight=False, soft_wrap=True)

    if not enabled():
        say("The cache is off (WEBTORCH_CACHE).")
        return 0
    for what, shelf in SHELVES.items():
        found = shelf.clear() if options.clear else shelf.contents()
        verb = "removed " if options.clear else ""
        say(
            f"{what}: {verb}{found.files} files, {found.nbytes / 2**20:.1f} MiB "
            f"(at most {shelf.most >> 20} MiB) in {shelf.folder()}"
        )
    if table_path().exists():
        say(f"tuned sizes: {table_path()}")
    return 0


def _demo(options: argparse.Namespace, console: Console) -> int:
    from webtorch.doctor import choose_device

    if options.preset is not None and options.what != "gpt":
        _complain("--preset is for `webtorch demo gpt`")
        return 2
    choice = choose_device(options.device)
    console.print(f"[bold]{choice.device}[/]: {choice.name}", highlight=False)
    if not choice.is_best:
        console.print(
            f"CPU, because {choice.reason}.", highlight=False, soft_wrap=True, markup=False
        )
    run = _digits if options.what == "digits" else _gpt
    figures, page = run(options, choice, console)

    from webtorch.demo import report

    path = report.write(page)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        console.print(f"figures: {options.json.resolve()}", highlight=False, soft_wrap=True)
    console.print(f"report:  {path}", highlight=False, soft_wrap=True)
    return 0


def _digits(
    options: argparse.Namespace, choice: Choice, console: Console
) -> tuple[dict[str, object], str]:
    from webtorch.demo import digits, report
    from webtorch.demo.progress import Meter

    result = digits.train(
        choice.device,
        epochs=options.epochs,
        seed=options.seed,
        quick=options.quick,
        meter=Meter(console),
        on_end=lambda *trained: _export("export_digits", trained, options, console),
    )
    console.print(
        f"[bold]{result.accuracy * 100:.2f} %[/] of {result.test_count} unseen digits read correctly, "
        f"after {result.seconds:.1f} s at {result.examples_per_second:,.0f} examples/s",
        highlight=False,
        soft_wrap=True,
    )
    figures: dict[str, object] = {
        "demo": "digits",
        "device": choice.device,
        "device_name": choice.name,
        "seed": result.seed,
        "epochs": result.epochs,
        "parameters": result.parameters,
        "accuracy": result.accuracy,
        "loss": result.losses[-1],
        "test_loss": result.test_losses[-1],
        "seconds": result.seconds,
        "examples_per_second": result.examples_per_second,
        "losses": result.losses,
        "accuracies": result.test_accuracies,
    }
    return figures, report.digits_page(result, _machine(choice))


def _gpt(
    options: argparse.Namespace, choice: Choice, console: Console
) -> tuple[dict[str, object], str]:
    from rich.text import Text

    from webtorch.demo import gpt, report
    from webtorch.demo.progress import Meter

    def show(sample: gpt.Sample) -> None:
        """Print a sample under its step and loss."""
        console.rule(f"step {sample.step}, held-out loss {sample.loss:.3f}", style="dim")
        console.print(Text(sample.text))

    result = gpt.train(
        options.preset or "tiny",
        choice.device,
        epochs=options.epochs,
        seed=options.seed,
        quick=options.quick,
        meter=Meter(console),
        on_sample=show,
        on_end=lambda *trained: _export("export_gpt", trained, options, console),
    )
    console.rule(style="dim")
    console.print(
        f"[bold]{result.held_out[-1]:.3f} nats per character[/] on text that it never saw, "
        f"after {result.seconds:.1f} s at {result.tokens_per_second:,.0f} tokens/s",
        highlight=False,
        soft_wrap=True,
    )
    figures: dict[str, object] = {
        "demo": "gpt",
        "preset": result.preset_name,
        "device": choice.device,
        "device_name": choice.name,
        "seed": result.seed,
        "epochs": result.epochs,
        "parameters": result.parameters,
        "loss": result.held_out[-1],
        "seconds": result.seconds,
        "tokens_per_second": result.tokens_per_second,
        "examples_per_second": result.tokens_per_second / result.preset.context,
        "losses": result.losses,
        "held_out_losses": result.held_out,
    }
    return figures, report.gpt_page(result, _machine(choice))


def _export(
    how: str, trained: tuple[object, ...], options: argparse.Namespace, console: Console
) -> None:
    if options.export is None:
        return
    from webtorch.demo import pages

    path = getattr(pages, how)(*trained, options.export)
    console.print(f"page:    {path}", highlight=False, soft_wrap=True)


def _machine(choice: Choice) -> Machine:
    from webtorch.demo.report import Machine
    from webtorch.doctor import package_version

    return Machine(
        device=choice.device,
        device_name=choice.name,
        note=choice.reason,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        webtorch=package_version("webtorch") or "source",
    )


def _complain(message: str) -> None:
    sys.stderr.write(f"webtorch: {message}\n")
