"""Orthogonal columns: Hestenes' one-sided Jacobi method, from which singular values and eigenvalues are made. Floor 2.

Pairs of columns are turned until all are orthogonal: A V = W. Pairs of a round have no column in common (Brent and
Luk, "The solution of singular-value and symmetric eigenvalue problems on multiprocessor arrays", 1985), so they are
turned at once. Matrices that fit in a workgroup's memory are done there. Of larger ones, pairs of blocks of columns are
turned: the product of a pair with itself is made diagonal in workgroup memory, by Jacobi's two-sided method, and what
did that is applied to both blocks. When no pair of a sweep was turned, the passes that follow leave at once.

Results, columns by falling norm: W, the norms; info: 1 where not all numbers are finite, 2 where the columns are not
orthogonal after the last sweep; V where it is wanted.
"""

from __future__ import annotations

import math
from dataclasses import replace

from webtorch.ir.kernel import Host
from webtorch.ir.limits import Limits
from webtorch.lower.templates.matrices.shader import Writer, combined
from webtorch.lower.wgsl_shader import WgslPass

# Quadratic convergence: some six to ten sweeps in float32. LAPACK stops after thirty.
_SWEEPS_SMALL = 30
_SWEEPS = 16
_EPSILON = 2.0**-23
# Columns of a block: a pair's product with itself, and what turns it, fit in workgroup memory.
_BLOCK, _COMPLEX_BLOCK = 16, 8
# Sweeps over a pair of blocks: more than a few gain nothing.
_INNER = 2


def _pair(players: str, round_: str, number: str) -> str:
    """Return the lines that leave in `first` and `second` who meets in a round, by the circle method."""
    return f"""
let ring = {players} - 1u;
let one = select(({round_} + {number}) % ring, ring, {number} == 0u);
let other = ({round_} + ring - {number}) % ring;
let first = min(one, other);
let second = max(one, other);"""


def _rotation(tolerance: float) -> str:
    """Return the lines that leave the rotation of two columns in s, tau and turn, from alpha, beta and gamma.

    Columns x and y become c x - s turn y and s conj(turn) x + c y, where c is 1 - s tau (Rutishauser, 1966): columns
    that are turned a little, many times, keep their length.
    """
    return f"""
let size = modulus(gamma);
var tau = 0.0;
var s = 0.0;
var turn = num_of(1.0);
let turned = size > {tolerance:.9e} * sqrt(alpha) * sqrt(beta) && size > 1e-37;
if (turned) {{
  let zeta = (beta - alpha) / (2.0 * size);
  let far = abs(zeta) > 1e9;
  let near = select(zeta, 0.0, far);
  let t = select(1.0 / (abs(near) + sqrt(1.0 + near * near)), 0.5 / abs(select(1.0, zeta, far)), far);
  let c = 1.0 / sqrt(1.0 + t * t);
  s = c * select(t, -t, zeta < 0.0);
  tau = s / (1.0 + c);
  turn = conj(phase(gamma));
}}"""


def _turned(name: str, x: str, y: str, turn: str) -> str:
    """Return the lines that turn two elements of a workgroup's array."""
    return f"""{{
            let p = {name}[{x}];
            let r = {name}[{y}];
            {name}[{x}] = p - s * (mul({turn}, r) + tau * p);
            {name}[{y}] = r + s * (mul(conj({turn}), p) - tau * r);
          }}"""


class _Jacobi:
    """Writes the passes of one matrix's size."""

    def __init__(self, r: Host, limits: Limits) -> None:
        self.w = Writer(r, limits)
        (self.vectors,) = r.params
        self.m, self.n = self.w.shapes[0][1:]
        self.tolerance = _EPSILON * math.sqrt(max(self.m, 4))
        count, m, n = self.w.count, self.m, self.n
        self.norms_at = count * m * n
        self.info_at = self.norms_at + count * n
        self.v_at = self.info_at + count

    def passes(self) -> list[WgslPass]:
        """Return all passes."""
        if self.n * (self.m + (self.n if self.vectors else 0) + 2) <= self.w.room:
            return [self.small()]
        return _Blocks(self).passes()

    def small(self) -> WgslPass:
        """Return the pass that does whole matrices in workgroup memory, a column after the other."""
        w, m, n = self.w, self.m, self.n
        players = n + n % 2
        pairs = max(players // 2, 1)
        size = w.width(64 if pairs <= 8 else 128 if pairs <= 16 else 256)
        # Two invocations for a pair: Mesa's software adapters end all loops of one after 65,535 turns.
        while size < 2 * pairs:
            size *= 2
        own = 1 << ((size // pairs).bit_length() - 1)
        rotate = f"""
      for (var i = part; i < {m}u; i = i + {own}u) {{
        let x = x_of[first * {m}u + i];
        let y = x_of[second * {m}u + i];
        x_of[first * {m}u + i] = x - s * (mul(turn, y) + tau * x);
        x_of[second * {m}u + i] = y + s * (mul(conj(turn), x) - tau * y);
      }}"""
        vectors = ""
        if self.vectors:
            vectors = rotate.replace("x_of", "v_of").replace(f"{m}u", f"{n}u")
        keep = (
            f"""
  for (var e = lid; e < {n * n}u; e = e + {size}u) {{
    let j = e % {n}u;
    {w.out}[{self.v_at}u + group * {n * n}u + (e / {n}u) * {n}u + rank[j]] = v_of[j * {n}u + e / {n}u];
  }}"""
            if self.vectors
            else ""
        )
        start = (
            f"""
for (var e = lid; e < {n * n}u; e = e + {size}u) {{
  v_of[e] = num_of(select(0.0, 1.0, e / {n}u == e % {n}u));
}}"""
            if self.vectors
            else ""
        )
        body = f"""
let base = group * {m * n}u;
var own = 0.0;
var bad = 0.0;
for (var e = lid; e < {m * n}u; e = e + {size}u) {{
  let x = b0[base + (e % {m}u) * {n}u + e / {m}u];
  x_of[e] = x;
  own = max(own, largest(x));
  {_is_bad("x", w.complex)}
}}
{combined("most", "own", "max(x, y)", size)}
{combined("strange", "bad", "max(x, y)", size)}
let e = exponent(most);
let small = power_of(254u - e);
for (var k = lid; k < {m * n}u; k = k + {size}u) {{
  x_of[k] = select(x_of[k] * small, num_of(0.0), strange > 0.0);
}}{start}
let pair = lid / {own}u;
let part = lid % {own}u;
var left = 0u;
for (var sweep = 0u; sweep < {_SWEEPS_SMALL}u; sweep = sweep + 1u) {{
  if (lid == 0u) {{
    atomicStore(&turns, 0u);
  }}
  workgroupBarrier();
  for (var round = 0u; round < {players - 1}u; round = round + 1u) {{
    {_pair(f"{players}u", "round", f"min(pair, {pairs - 1}u)")}
    let real_pair = pair < {pairs}u && second < {n}u;
    var a2 = 0.0;
    var b2 = 0.0;
    var ab = num_of(0.0);
    if (real_pair) {{
      for (var i = part; i < {m}u; i = i + {own}u) {{
        let x = x_of[first * {m}u + i];
        let y = x_of[second * {m}u + i];
        a2 = a2 + square(x);
        b2 = b2 + square(y);
        ab = ab + mul(conj(x), y);
      }}
    }}
    sums[lid] = a2;
    others[lid] = b2;
    dots[lid] = ab;
    workgroupBarrier();
    if (real_pair) {{
      var alpha = 0.0;
      var beta = 0.0;
      var gamma = num_of(0.0);
      for (var k = 0u; k < {own}u; k = k + 1u) {{
        alpha = alpha + sums[pair * {own}u + k];
        beta = beta + others[pair * {own}u + k];
        gamma = gamma + dots[pair * {own}u + k];
      }}
      {_rotation(self.tolerance)}
      if (turned) {{
        if (part == 0u) {{
          atomicAdd(&turns, 1u);
        }}{rotate}{vectors}
      }}
    }}
    workgroupBarrier();
  }}
  if (lid == 0u) {{
    many = atomicLoad(&turns);
  }}
  left = workgroupUniformLoad(&many);
  if (left == 0u) {{
    break;
  }}
}}
for (var j = lid; j < {n}u; j = j + {size}u) {{
  var sum = 0.0;
  for (var i = 0u; i < {m}u; i = i + 1u) {{
    sum = sum + square(x_of[j * {m}u + i]);
  }}
  norms[j] = sqrt(sum);
}}
workgroupBarrier();
for (var j = lid; j < {n}u; j = j + {size}u) {{
  var place = 0u;
  for (var k = 0u; k < {n}u; k = k + 1u) {{
    if (norms[k] > norms[j] || (norms[k] == norms[j] && k < j)) {{
      place = place + 1u;
    }}
  }}
  rank[j] = place;
  {w.out}[{self.norms_at}u + group * {n}u + place] = num_of(norms[j] * power_of(e));
}}
workgroupBarrier();
{{
  for (var k = lid; k < {m * n}u; k = k + {size}u) {{
    let j = k % {n}u;
    {w.out}[base + (k / {n}u) * {n}u + rank[j]] = x_of[j * {m}u + k / {n}u] * power_of(e);
  }}{keep}
}}
if (lid == 0u) {{
  let told = select(select(0.0, 2.0, left > 0u), 1.0, strange > 0.0);
  {w.out}[{self.info_at}u + group] = num_of(told);
}}"""
        shared = [
            f"x_of: array<num, {m * n}>",
            *([f"v_of: array<num, {n * n}>"] if self.vectors else []),
            f"sums: array<f32, {size}>",
            f"others: array<f32, {size}>",
            f"dots: array<num, {size}>",
            f"norms: array<f32, {n}>",
            f"rank: array<u32, {n}>",
            "turns: atomic<u32>",
            "many: u32",
        ]
        return w.make(body, w.count, size, shared)


def _is_bad(x: str, complex_: bool) -> str:
    parts = (f"{x}.x", f"{x}.y") if complex_ else (x,)
    test = " || ".join(f"bits_of({p}) >= 0x7f800000u" for p in parts)
    return f"if ({test}) {{ bad = 1.0; }}"


class _Blocks:
    """Writes the passes of matrices that do not fit in a workgroup's memory.

    Scratch memory: 0 the columns, padded with zeros to pairs of blocks; 1 what they were turned by; 2 the products of
    pairs, then what turns them; 3 norms and places of the columns; 4 for each matrix: the exponent of its scale,
    whether it is strange, how many pairs were turned in this sweep, whether it is done; 5 whether a pair is turned.
    """

    def __init__(self, j: _Jacobi) -> None:
        self.j, self.w = j, j.w
        self.block = _COMPLEX_BLOCK if self.w.complex else _BLOCK
        self.both = 2 * self.block
        self.players = 2 * -(-j.n // self.both)
        self.pairs = self.players // 2
        self.wide = self.players * self.block
        w, m = self.w, j.m
        tall = self.wide if j.vectors else 1
        w.ask(
            w.count * m * self.wide, w.count * tall * self.wide,
            w.count * self.pairs * self.both * self.both, 2 * w.count * self.wide, 4 * w.count,
            w.count * self.pairs,
            types=("num", "num", "num", "f32", "atomic<u32>", "u32"),
        )  # fmt: skip

    def passes(self) -> list[WgslPass]:
        """Return all passes."""
        first = [self.square(), self.turn(), *self.apply()]
        sweep = [
            replace(p, numbers=(round_, *p.numbers[1:])) if p.numbers else p
            for round_ in range(self.players - 1)
            for p in first
        ]
        sweeps = [*sweep, self.judge()] * _SWEEPS
        return [self.measure(), *self.start(), *sweeps, self.norms(), self.ranks(), *self.put()]

    def measure(self) -> WgslPass:
        """Return the pass that finds the largest number of each matrix, and whether all are finite."""
        m, n, w = self.j.m, self.j.n, self.w
        size = w.width(256)
        body = f"""
var own = 0.0;
var bad = 0.0;
for (var e = lid; e < {m * n}u; e = e + {size}u) {{
  let x = b0[group * {m * n}u + e];
  own = max(own, largest(x));
  {_is_bad("x", w.complex)}
}}
{combined("most", "own", "max(x, y)", size)}
{combined("strange", "bad", "max(x, y)", size)}
if (lid == 0u) {{
  atomicStore(&scratch4[group * 4u], exponent(most));
  atomicStore(&scratch4[group * 4u + 1u], u32(strange));
  atomicStore(&scratch4[group * 4u + 2u], 0u);
  atomicStore(&scratch4[group * 4u + 3u], u32(strange));
}}"""
        return w.make(body, w.count, size, [f"sums: array<f32, {size}>"])

    def start(self) -> list[WgslPass]:
        """Return the passes that fill the columns, scaled, and what they were turned by."""
        m, n, wide, w = self.j.m, self.j.n, self.wide, self.w
        columns = f"""
  let b = id / {m * wide}u;
  let i = (id / {wide}u) % {m}u;
  let j = id % {wide}u;
  var x = num_of(0.0);
  if (j < {n}u && atomicLoad(&scratch4[b * 4u + 1u]) == 0u) {{
    x = b0[b * {m * n}u + i * {n}u + j] * power_of(254u - atomicLoad(&scratch4[b * 4u]));
  }}
  scratch0[id] = x;"""
        found = [w.elements(columns, w.count * m * wide)]
        if self.j.vectors:
            one = f"scratch1[id] = num_of(select(0.0, 1.0, (id / {wide}u) % {wide}u == id % {wide}u));"
            found.append(w.elements(one, w.count * wide * wide))
        return found

    def column(self, pair: str, number: str) -> str:
        """Return the text of the column that is `number` of a pair's, which `first` and `second` name."""
        block = self.block
        return f"select(second * {block}u + {number} - {block}u, first * {block}u + {number}, {number} < {block}u)"

    def square(self) -> WgslPass:
        """Return the pass that multiplies each pair's columns with themselves."""
        m, wide, both, w = self.j.m, self.wide, self.both, self.w
        size = w.width(256)
        # Rows are split among groups of invocations, each of which has a quarter of the elements or more.
        each = both * both // size if both * both > size else 1
        body = f"""
let b = group / {self.pairs}u;
if (atomicLoad(&scratch4[b * 4u + 3u]) == 0u) {{
  {_pair(f"{self.players}u", "at.round", f"(group % {self.pairs}u)")}
  for (var k = 0u; k < {each}u; k = k + 1u) {{
    let e = lid + k * {size}u;
    if (e < {both * both}u) {{
      let p = e / {both}u;
      let q = e % {both}u;
      let x = b * {m * wide}u + {self.column("group", "p")};
      let y = b * {m * wide}u + {self.column("group", "q")};
      var sum = num_of(0.0);
      for (var i = 0u; i < {m}u; i = i + 1u) {{
        sum = sum + mul(conj(scratch0[x + i * {wide}u]), scratch0[y + i * {wide}u]);
      }}
      scratch2[group * {both * both}u + e] = sum;
    }}
  }}
}}"""
        return w.make(body, w.count * self.pairs, size, (), {"round": 0})

    def turn(self) -> WgslPass:
        """Return the pass that makes the products diagonal, and leaves what does that in their place."""
        both, w, block = self.both, self.w, self.block
        size = w.width(256)
        # For each row (column) and each pair, an element of both columns (rows).
        turning = f"""
      for (var e = lid; e < {both * block}u; e = e + {size}u) {{
        let n = e % {block}u;
        let i = e / {block}u;
        let x = first_of[n];
        let y = second_of[n];
        let s = s_of[n];
        let tau = tau_of[n];
        $body
      }}"""
        columns = _turned("g", f"i * {both}u + x", f"i * {both}u + y", "turn_of[n]")
        columns += _turned("q", f"i * {both}u + x", f"i * {both}u + y", "turn_of[n]")
        rows = _turned("g", f"x * {both}u + i", f"y * {both}u + i", "conj(turn_of[n])")
        body = f"""
let b = group / {self.pairs}u;
let base = group * {both * both}u;
// The same for all invocations, and the engine must see that.
if (lid == 0u) {{
  done = atomicLoad(&scratch4[b * 4u + 3u]);
  atomicStore(&turns, 0u);
}}
if (workgroupUniformLoad(&done) == 0u) {{
  for (var e = lid; e < {both * both}u; e = e + {size}u) {{
    g[e] = scratch2[base + e];
    q[e] = num_of(select(0.0, 1.0, e / {both}u == e % {both}u));
  }}
  workgroupBarrier();
  var before = 0u;
  for (var sweep = 0u; sweep < {_INNER}u; sweep = sweep + 1u) {{
    for (var round = 0u; round < {both - 1}u; round = round + 1u) {{
      if (lid < {block}u) {{
        {_pair(f"{both}u", "round", "lid")}
        let alpha = max(re(g[first * {both + 1}u]), 0.0);
        let beta = max(re(g[second * {both + 1}u]), 0.0);
        let gamma = g[first * {both}u + second];
        {_rotation(self.j.tolerance)}
        if (turned) {{
          atomicAdd(&turns, 1u);
        }}
        first_of[lid] = first;
        second_of[lid] = second;
        tau_of[lid] = tau;
        s_of[lid] = s;
        turn_of[lid] = turn;
      }}
      workgroupBarrier();
      {turning.replace("$body", columns)}
      workgroupBarrier();
      {turning.replace("$body", rows)}
      workgroupBarrier();
    }}
    if (lid == 0u) {{
      many = atomicLoad(&turns);
    }}
    let now = workgroupUniformLoad(&many);
    if (now == before) {{
      break;
    }}
    before = now;
  }}
  for (var e = lid; e < {both * both}u; e = e + {size}u) {{
    scratch2[base + e] = q[e];
  }}
  if (lid == 0u) {{
    scratch5[group] = many;
    if (many > 0u) {{
      atomicAdd(&scratch4[b * 4u + 2u], many);
    }}
  }}
}}"""
        shared = [
            f"g: array<num, {both * both}>", f"q: array<num, {both * both}>",
            f"first_of: array<u32, {block}>", f"second_of: array<u32, {block}>",
            f"s_of: array<f32, {block}>", f"tau_of: array<f32, {block}>",
            f"turn_of: array<num, {block}>", "turns: atomic<u32>", "many: u32", "done: u32",
        ]  # fmt: skip
        return w.make(body, w.count * self.pairs, size, shared)

    def apply(self) -> list[WgslPass]:
        """Return the passes that turn the columns of each pair, row by row in place."""
        found = [self._applied("scratch0", self.j.m)]
        if self.j.vectors:
            found.append(self._applied("scratch1", self.wide))
        return found

    def _applied(self, name: str, rows: int) -> WgslPass:
        wide, both, w = self.wide, self.both, self.w
        size = w.width(256)
        tall = size // both
        groups = -(-rows // tall)
        body = f"""
let which = group / {groups}u;
let b = which / {self.pairs}u;
if (lid == 0u) {{
  idle = select(0u, 1u, atomicLoad(&scratch4[b * 4u + 3u]) != 0u || scratch5[which] == 0u);
}}
if (workgroupUniformLoad(&idle) == 0u) {{
  {_pair(f"{self.players}u", "at.round", f"(which % {self.pairs}u)")}
  let p = lid % {both}u;
  let i = (group % {groups}u) * {tall}u + lid / {both}u;
  let place = b * {rows * wide}u + min(i, {rows - 1}u) * {wide}u + {self.column("which", "p")};
  row[lid] = {name}[place];
  workgroupBarrier();
  var sum = num_of(0.0);
  for (var k = 0u; k < {both}u; k = k + 1u) {{
    sum = sum + mul(row[lid - p + k], scratch2[which * {both * both}u + k * {both}u + p]);
  }}
  if (i < {rows}u) {{
    {name}[place] = sum;
  }}
}}"""
        shared = [f"row: array<num, {size}>", "idle: u32"]
        return w.make(body, w.count * self.pairs * groups, size, shared, {"round": 0})

    def judge(self) -> WgslPass:
        """Return the pass that ends a sweep: a matrix of which no pair was turned is done."""
        body = """
  if (atomicLoad(&scratch4[id * 4u + 2u]) == 0u) {
    atomicStore(&scratch4[id * 4u + 3u], 1u);
  }
  atomicStore(&scratch4[id * 4u + 2u], 0u);"""
        return self.w.elements(body, self.w.count)

    def norms(self) -> WgslPass:
        """Return the pass that measures the columns."""
        m, wide, w = self.j.m, self.wide, self.w
        body = f"""
  let b = id / {wide}u;
  let j = id % {wide}u;
  var sum = 0.0;
  for (var i = 0u; i < {m}u; i = i + 1u) {{
    sum = sum + square(scratch0[b * {m * wide}u + i * {wide}u + j]);
  }}
  scratch3[2u * id] = sqrt(sum);"""
        return w.elements(body, w.count * wide)

    def ranks(self) -> WgslPass:
        """Return the pass that gives each column its place, and puts the norms there."""
        wide, n, w, j = self.wide, self.j.n, self.w, self.j
        body = f"""
  let b = id / {wide}u;
  let j = id % {wide}u;
  let norm = scratch3[2u * id];
  var place = 0u;
  for (var k = 0u; k < {wide}u; k = k + 1u) {{
    let other = scratch3[2u * (b * {wide}u + k)];
    if (other > norm || (other == norm && k < j)) {{
      place = place + 1u;
    }}
  }}
  scratch3[2u * id + 1u] = f32(place);
  if (place < {n}u) {{
    {w.out}[{j.norms_at}u + b * {n}u + place] = num_of(norm * power_of(atomicLoad(&scratch4[b * 4u])));
  }}
  if (j == 0u) {{
    var told = select(2.0, 0.0, atomicLoad(&scratch4[b * 4u + 3u]) != 0u);
    if (atomicLoad(&scratch4[b * 4u + 1u]) != 0u) {{
      told = 1.0;
    }}
    {w.out}[{j.info_at}u + b] = num_of(told);
  }}"""
        return w.elements(body, w.count * wide)

    def put(self) -> list[WgslPass]:
        """Return the passes that put the columns in their order."""
        m, n, wide, w, j = self.j.m, self.j.n, self.wide, self.w, self.j

        def columns(name: str, rows: int, tall: int, at: int, scale: str) -> WgslPass:
            """Return the pass for the first `rows` rows of scratch memory that has `tall` of them."""
            body = f"""
  let b = id / {rows * wide}u;
  let i = (id / {wide}u) % {rows}u;
  let j = id % {wide}u;
  let place = u32(scratch3[2u * (b * {wide}u + j) + 1u]);
  if (place < {n}u) {{
    let x = {name}[b * {tall * wide}u + i * {wide}u + j];
    {w.out}[{at}u + b * {rows * n}u + i * {n}u + place] = x{scale};
  }}"""
            return w.elements(body, w.count * rows * wide)

        scale = " * power_of(atomicLoad(&scratch4[b * 4u]))"
        found = [columns("scratch0", m, m, 0, scale)]
        if j.vectors:
            found.append(columns("scratch1", n, wide, j.v_at, ""))
        return found


def orthogonal_columns(r: Host, limits: Limits) -> list[WgslPass]:
    """Return the passes: (W, norms, info, V where wanted)."""
    return _Jacobi(r, limits).passes()
