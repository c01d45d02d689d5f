"""What the kernels of factorisations share: numbers that are real or complex, shaders, sums over a workgroup.

Floor 2; imports floor 0 and the shader's frame.

A kernel is written once, over the type `num` and the functions on it: f32, or vec2<f32> for a complex number. Where a
blocked method runs one kernel at many places of a matrix, the places are the pass's own numbers (`WgslPass.numbers`),
so that it is compiled once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from webtorch.errors import DTypeError
from webtorch.ir.dtype import float64
from webtorch.ir.kernel import Host
from webtorch.ir.limits import Limits
from webtorch.lower.prelude import HELPERS as PRELUDE
from webtorch.lower.wgsl_shader import Binding, WgslPass, fold_grid
from webtorch.lower.wide import HELPERS, KIND

# Of float64, two words each (`lower/wide`): what the kernels of `_OF_WIDE` ask for.
_WIDE = {
    "num_of": "fn num_of(x: f32) -> num { return wt_f64_from_f32(x); }",
    "re": "fn re(x: num) -> real { return x; }",
    "of_real": "fn of_real(x: real) -> num { return x; }",
    "conj": "fn conj(x: num) -> num { return x; }",
    "plus": "fn plus(a: num, b: num) -> num { return wt_f64_add(a, b); }",
    "less": "fn less(a: num, b: num) -> num { return wt_f64_sub(a, b); }",
    "mul": "fn mul(a: num, b: num) -> num { return wt_f64_mul(a, b); }",
    "over": "fn over(a: num, b: num) -> num { return wt_f64_div(a, b); }",
    "over_real": "fn over_real(a: num, b: real) -> num { return wt_f64_div(a, b); }",
    "root_of": "fn root_of(x: real) -> real { return wt_f64_sqrt(x); }",
    "is_zero": "fn is_zero(x: num) -> bool { return wt_f64_iszero(x); }",
    "is_positive": (
        "fn is_positive(x: real) -> bool { return x.y < 0x80000000u && !wt_f64_iszero(x) && !wt_f64_isnan(x); }"
    ),
    **{name: text for name, text in HELPERS.items() if name != KIND},
    "wt_mulhi": PRELUDE["wt_mulhi"],
}
_REAL = {
    "num_of": "fn num_of(x: f32) -> num { return x; }",
    "re": "fn re(x: num) -> f32 { return x; }",
    "conj": "fn conj(x: num) -> num { return x; }",
    "mul": "fn mul(a: num, b: num) -> num { return a * b; }",
    "over": "fn over(a: num, b: num) -> num { return a / b; }",
    "square": "fn square(x: num) -> f32 { return x * x; }",
    "pivot_size": "fn pivot_size(x: num) -> f32 { return abs(x); }",
    "largest": "fn largest(x: num) -> f32 { return abs(x); }",
    "is_zero": "fn is_zero(x: num) -> bool { return x == 0.0; }",
    "of_real": "fn of_real(x: real) -> num { return x; }",
    "phase": "fn phase(x: num) -> num { return select(1.0, -1.0, x < 0.0); }",
    "modulus": "fn modulus(x: num) -> f32 { return abs(x); }",
}
_COMPLEX = {
    "num_of": "fn num_of(x: f32) -> num { return num(x, 0.0); }",
    "re": "fn re(x: num) -> f32 { return x.x; }",
    "conj": "fn conj(x: num) -> num { return num(x.x, -x.y); }",
    "mul": "fn mul(a: num, b: num) -> num { return num(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }",
    # Smith, "Algorithm 116", 1962: no square overflows.
    "over": """
fn over(a: num, b: num) -> num {
  if (abs(b.x) >= abs(b.y)) {
    let r = b.y / b.x;
    let d = b.x + b.y * r;
    return num((a.x + a.y * r) / d, (a.y - a.x * r) / d);
  }
  let r = b.x / b.y;
  let d = b.x * r + b.y;
  return num((a.x * r + a.y) / d, (a.y * r - a.x) / d);
}""".strip(),
    "square": "fn square(x: num) -> f32 { return dot(x, x); }",
    # As LAPACK compares pivots.
    "pivot_size": "fn pivot_size(x: num) -> f32 { return abs(x.x) + abs(x.y); }",
    "largest": "fn largest(x: num) -> f32 { return max(abs(x.x), abs(x.y)); }",
    "is_zero": "fn is_zero(x: num) -> bool { return x.x == 0.0 && x.y == 0.0; }",
    "of_real": "fn of_real(x: real) -> num { return num(x, 0.0); }",
    "phase": """
fn phase(x: num) -> num {
  let most = max(abs(x.x), abs(x.y));
  if (most == 0.0) { return num(1.0, 0.0); }
  let y = x / most;
  return y / sqrt(dot(y, y));
}""".strip(),
    "modulus": """
fn modulus(x: num) -> f32 {
  let most = max(abs(x.x), abs(x.y));
  if (most == 0.0) { return 0.0; }
  let y = x / most;
  return most * sqrt(dot(y, y));
}""".strip(),
}
_SHARED = {
    "plus": "fn plus(a: num, b: num) -> num { return a + b; }",
    "less": "fn less(a: num, b: num) -> num { return a - b; }",
    "over_real": "fn over_real(a: num, b: real) -> num { return a / b; }",
    "root_of": "fn root_of(x: real) -> real { return sqrt(x); }",
    # Comparisons say nothing of NaN that all adapters agree on: these look at the bits.
    "bits_of": "fn bits_of(x: f32) -> u32 { return bitcast<u32>(x) & 0x7fffffffu; }",
    "is_positive": (
        "fn is_positive(x: f32) -> bool { let b = bitcast<u32>(x); return b > 0u && b <= 0x7f800000u; }"
    ),
    # A power of two by which the largest number x becomes one between 1 and 2, and its inverse.
    "exponent": "fn exponent(x: f32) -> u32 { return clamp(bits_of(x) >> 23u, 1u, 253u); }",
    "power_of": "fn power_of(e: u32) -> f32 { return bitcast<f32>(e << 23u); }",
}

# Bytes of a workgroup's memory that are left for what its invocations sum: at most 256 of them, 16 bytes each.
_RESERVED = 4352
# What is written with functions alone, so that float64 can be computed.
_OF_WIDE = ("cholesky", "solve_triangular")


class Writer:
    """Writes the passes of one routine. `scratch` are the bytes of the memory that they share."""

    def __init__(self, r: Host, limits: Limits) -> None:
        self.r, self.limits = r, limits
        self.complex = r.function.startswith("complex ")
        # Of each input the sizes, without the pair of a complex number.
        self.shapes = [s[:-1] if self.complex else s for s in r.shapes]
        self.count = self.shapes[0][0]
        self.wide = r.buffers[0].dtype is float64
        if self.wide and (self.complex or r.function not in _OF_WIDE):
            raise DTypeError(
                f"{r.function}: WebGPU computes no float64 here. Use float32, or device='cpu'"
            )
        self.bytes = 8 if self.complex or self.wide else 4
        self.out = f"b{len(r.buffers) - 1}"
        self.scratch: tuple[int, ...] = ()
        # What the numbers of each scratch buffer are.
        self.scratch_types: tuple[str, ...] = ()
        self._made: dict[
            tuple[str, int, tuple[str, ...], tuple[str, ...]],
            tuple[str, tuple[int, ...], tuple[Binding, ...]],
        ] = {}
        self._functions = _WIDE if self.wide else _SHARED | (_COMPLEX if self.complex else _REAL)

    def ask(self, *elements: int, types: Sequence[str] = ()) -> None:
        """Ask for scratch memory: how many elements of each buffer, and of what type (num)."""
        kinds = tuple(types) or ("num",) * len(elements)
        self.scratch_types = kinds
        self.scratch = tuple(
            max(16, n * (self.bytes if k == "num" else 4)) for n, k in zip(elements, kinds)
        )

    @property
    def room(self) -> int:
        """How many numbers of a matrix fit in a workgroup's memory, beside a kernel's sums."""
        return (self.limits.workgroup_memory_bytes - _RESERVED) // self.bytes

    def width(self, most: int) -> int:
        """Return the largest power of two up to `most` that a workgroup should have invocations."""
        if not self.limits.is_gpu:
            # Processors take turns among invocations at each barrier.
            most = min(most, 64)
        return min(most, 1 << (self.limits.max_workgroup_invocations.bit_length() - 1))

    def make(
        self,
        body: str,
        groups: int,
        size: int,
        shared: Sequence[str] = (),
        numbers: Mapping[str, int] | None = None,
    ) -> WgslPass:
        """Return a pass of `groups` workgroups of `size` invocations.

        The body knows `group`, `lid`, the routine's buffers b0, b1, ..., its scratch memory scratch0, ..., and
        its numbers as `at.name`.
        """
        grid = fold_grid(groups, self.limits)
        # The text is the same for every grid, so that one shader serves all places.
        head = ["let group = (wid.z * grid.y + wid.y) * grid.x + wid.x;"]
        if numbers:
            numbers = {**numbers, "groups": groups}
            head.append("if (group >= at.groups) { return; }")
        elif grid[0] * grid[1] * grid[2] != groups:
            head.append(f"if (group >= {groups}u) {{ return; }}")
        names = tuple(numbers or ())
        key = ("\n".join((*head, *body.strip("\n").splitlines())), size, tuple(shared), names)
        # A blocked method asks for the same text at each step.
        if key not in self._made:
            self._made[key] = self._source(*key)
        source, slots, bindings = self._made[key]
        return WgslPass(
            source, grid, (size, 1, 1), slots, self.scratch, bindings=bindings,
            trusted_indices=True, trusted_loops=True, numbers=tuple((numbers or {}).values()),
        )  # fmt: skip

    def _source(
        self, body: str, size: int, shared: tuple[str, ...], numbers: tuple[str, ...]
    ) -> tuple[str, tuple[int, ...], tuple[Binding, ...]]:
        """Return a shader, the buffers of the routine that it uses, and its bindings."""
        kinds = (KIND, KIND) if self.wide else ("vec2<f32>" if self.complex else "f32", "f32")
        lines = [f"alias num = {kinds[0]};", f"alias real = {kinds[1]};"]
        lines += [HELPERS[KIND]] if self.wide else []
        bindings: list[Binding] = []
        slots: list[int] = []
        last = len(self.r.buffers) - 1
        for number in range(last + 1):
            if re.search(rf"\bb{number}\[", body):
                access: Binding = "read_write" if number == last else "read"
                lines.append(
                    f"@group(0) @binding({len(bindings)}) var<storage, {access}> b{number}: array<num>;"
                )
                bindings.append(access)
                slots.append(number)
        for number, kind in enumerate(self.scratch_types):
            lines.append(
                f"@group(0) @binding({len(bindings)}) var<storage, read_write> scratch{number}: array<{kind}>;"
            )
            bindings.append("read_write")
        if numbers:
            members = ", ".join(f"{name}: u32" for name in numbers)
            lines += [
                f"struct Numbers {{ {members} }}",
                f"@group(0) @binding({len(bindings)}) var<uniform> at: Numbers;",
            ]
            bindings.append("uniform")
        lines += [f"var<workgroup> {s};" for s in shared]
        lines += self._needed(body)
        source = "\n".join(
            [
                *lines,
                f"@compute @workgroup_size({size})",
                "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>, "
                "@builtin(local_invocation_index) lid: u32) {",
                *("  " + line for line in body.splitlines()),
                "}",
                "",
            ]
        )
        return source, tuple(slots), tuple(bindings)

    def _needed(self, body: str) -> list[str]:
        found: dict[str, str] = {}
        texts = [body]
        while texts:
            text = texts.pop()
            for name, function in self._functions.items():
                if name not in found and re.search(rf"\b{name}\(", text):
                    found[name] = function
                    texts.append(function)
        return [found[name] for name in self._functions if name in found]

    def elements(self, body: str, count: int, numbers: Mapping[str, int] | None = None) -> WgslPass:
        """Return a pass that runs `body` for each `id` below `count`."""
        size = self.width(64)
        most = f"{count}u"
        if numbers:
            numbers, most = {**numbers, "count": count}, "at.count"
        text = f"let id = group * {size}u + lid;\nif (id < {most}) {{\n{body}\n}}"
        return self.make(text, -(-count // size), size, (), numbers)


def combined(name: str, value: str, how: str, size: int, kind: str = "f32") -> str:
    """Return the lines that leave in `name` the combination of `value` over the workgroup.

    `how` says what becomes of x and y. They use the workgroup's array `sums` (`sums_of`).
    """
    return f"""
sums[lid] = {value};
workgroupBarrier();
for (var half = {size // 2}u; half > 0u; half = half >> 1u) {{
  if (lid < half) {{
    let x = sums[lid];
    let y = sums[lid + half];
    sums[lid] = {how};
  }}
  workgroupBarrier();
}}
let {name}: {kind} = sums[0];
workgroupBarrier();"""


def sought(size: int) -> str:
    """Return the lines that leave the largest `key` of the workgroup in keys[0], and its first `place` in places[0].

    They use the workgroup's arrays `keys` and `places`.
    """
    return f"""keys[lid] = key;
  places[lid] = place;
  workgroupBarrier();
  for (var half = {size // 2}u; half > 0u; half = half >> 1u) {{
    if (lid < half) {{
      let other = lid + half;
      if (keys[other] > keys[lid] || (keys[other] == keys[lid] && places[other] < places[lid])) {{
        keys[lid] = keys[other];
        places[lid] = places[other];
      }}
    }}
    workgroupBarrier();
  }}"""
