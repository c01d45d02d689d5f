"""Kernels with reductions: the launch geometry and the passes. Floor 2; imports floor 0 and the
writer.

A workgroup has `tx` x `ty` invocations: `tx` outer points side by side, and for each of them `ty`
invocations that share its
inner points and combine through workgroup memory. ty = 1 is "one thread per outer point", tx = 1
"one workgroup per outer
point". Rows that fit into the registers of a workgroup are read once, whatever the number of
stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from webtorch.ir import expr as ex
from webtorch.ir.dtype import (
    bool_,
    float32,
    float64,
    int32,
)
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import (
    Check,
    Kernel,
    Reduce,
    Store,
)
from webtorch.ir.limits import Limits
from webtorch.lower import prelude
from webtorch.lower.affine import affine
from webtorch.lower.coarsening import CARD, coarsened, is_dear
from webtorch.lower.sizes import size_class
from webtorch.lower.wgsl_shader import Draft, WgslPass, beside, finish, fold_grid, group_number
from webtorch.lower.wgsl_table import TWO_WORDS, combine, convert, identity, wgsl_type, wrap
from webtorch.lower.wgsl_writer import KernelWriter, Scope, rounded_by_store
from webtorch.ops.bits import half_of

# Most points that one invocation takes without a loop, and most expression nodes that this may
# multiply to.
_STATIC_POINTS = 16


_STATIC_NODES = 1500


# Invocations that keep a large GPU at work.
_INVOCATIONS = 1 << 16
# Terms that one running float sum may take before a fresh partial sum is started.
_BLOCK = 64
# How often the body of a reducing loop is written out, and the most lines that this may give.
_UNROLLED, _UNROLLED_LINES = 4, 96


@dataclass(frozen=True, slots=True)
class Geometry:
    """tx outer points and ty invocations for each of them in a workgroup; `columns` puts
    neighbouring outer points in
    neighbouring invocations. `split` workgroups share one outer point in a first pass."""

    tx: int
    ty: int
    columns: bool
    split: int = 1


# Mesa's llvmpipe leaves a loop, without a word, after 65,535 turns of all loops of an invocation
# together (LP_MAX_TGSI_LOOP_ITERATIONS).
_ITERATIONS = 1 << 14
# How many turns the loop of a scalar function may take for each point, such as an exact remainder's.
_TURNS_OF_FUNCTIONS = 64


def power_below(n: int) -> int:
    """Return the largest power of two that is at most `n` (1 for less)."""
    return 1 << (max(n, 1).bit_length() - 1)


def _iterations(writer: KernelWriter) -> int:
    """Return how many turns of its loop an invocation on the CPU gets at most."""
    nodes = ex.walk(*writer.kernel.expressions())
    loops = any(n.op in prelude.LOOPING for n in nodes)
    return _ITERATIONS // _TURNS_OF_FUNCTIONS if loops else _ITERATIONS


def choose_geometry(writer: KernelWriter) -> Geometry:
    """Choose how a reduction is spread over invocations."""
    k, limits = writer.kernel, writer.limits
    m, n = k.outer_count, k.inner_count
    if limits.varying:
        m, n = size_class(m), size_class(n)
    most = power_below(min(limits.max_workgroup_invocations, 1024 if limits.is_gpu else 64))
    columns = reads_columns(writer)
    # (On a software adapter a barrier costs more to compile than some hundred turns of a loop to run.)
    # (Few rows whose turns are dear are spread over invocations, however few turns there are.)
    few = n <= 16 and not (limits.is_gpu and m < _INVOCATIONS and is_dear(k, CARD))
    if few or (not limits.is_gpu and ((m >= 32 and n <= _iterations(writer)) or n <= 512)):
        return Geometry(64 if m >= 64 else power_below(m), 1, True)
    if columns:
        tx = min(32, power_below(m))
        ty = 1 if m >= 1 << 18 else min(power_below(n // 4), max(most // 4, 1) // tx or 1, 16)
        groups = -(-m // tx)
        return Geometry(
            tx, max(ty, 1), True, _split(writer, groups, n, 2048, 32 * max(ty, 1), max(ty, 1))
        )
    per = max(writer.lanes, 1)
    ty = min(power_below(max(n // per, 1) * 2 - 1), 256, most)
    # Long rows that one workgroup can still keep in registers.
    while ty < most and n > ty * 8 * per and n <= most * 8 * per:
        ty *= 2
    # Short rows, and many: several vectors for each invocation, so that fewer have to be combined.
    while limits.is_gpu and ty > 4 and ty * 4 * per > n:
        if m < 1 << 14 and m * ty < 4 * _INVOCATIONS:
            break
        ty //= 2
    tx = max(1, min((256 if limits.is_gpu else 64) // ty, most // ty, power_below(m)))
    return Geometry(tx, ty, False, _split(writer, -(-m // tx), n, 528, 4096, ty * per))


def _split(
    writer: KernelWriter, groups: int, n: int, target: int, least: int, per_turn: int
) -> int:
    """Return how many workgroups share an outer point: more than 1 where there are few points with
    long rows.

    A GPU should get about `target` workgroups, and each of them at least `least` inner points. No
    invocation gets more turns of its loop, of `per_turn` points for the workgroup, than an adapter
    on the CPU can be trusted with.
    """
    k = writer.kernel
    needed = 1
    if not writer.limits.is_gpu:
        target, least = 4, 16384
        needed = -(-n // (per_turn * _iterations(writer)))
    if any(s.level == "inner" for s in k.stores) or (groups * 2 > target and needed == 1):
        return 1
    if any(c.level == "inner" for c in k.checks) or any(
        node.op == "reduced" for r in k.reduces for node in ex.walk(r.value)
    ):
        return 1
    return max(needed, min(target // groups, n // least))


def reads_columns(writer: KernelWriter) -> bool:
    """Whether neighbouring outer points read neighbouring elements while the inner points are
    apart."""
    k = writer.kernel
    if not k.outer:
        return False
    last_outer = max((d for d, s in enumerate(k.outer) if s > 1), default=-1)
    last_inner = max((d for d, s in enumerate(k.inner) if s > 1), default=-1)
    if last_outer < 0 or last_inner < 0:
        return False
    score = 0
    for node in writer.loads():
        form = affine(node.args[0], writer.affine_memo)
        if form is None or not writer.mask(node) & writer.inner_mask:
            continue
        # The larger buffer decides.
        weight = k.buffers[cast(int, node.value)].elements
        inside, beside = form.stride(writer.rank + last_inner), form.stride(last_outer)
        if inside == 1:
            score -= weight
        elif beside == 1 or 1 < beside <= CARD.most < inside:
            # Next to each other, or some that are computed together.
            score += weight
    return score > 0


@dataclass(slots=True)
class _Accumulator:
    """The running state of one stage in one invocation: a value, and a position for argmax and
    argmin."""

    stage: int
    reduce: Reduce
    kind: str
    value: str = ""
    position: str = ""

    @property
    def is_arg(self) -> bool:
        """Return whether the stage looks for a position: argmax or argmin."""
        return self.reduce.reducer.is_position

    def better(self, value: str, position: str) -> str:
        """Return the test whether another (value, position) wins."""
        mine, at = self.value, self.position
        if self.kind == "f32" or self.kind in TWO_WORDS.values():
            return f"wt_{self.reduce.op}_{self.kind.removeprefix('wt_')}({mine}, {at}, {value}, {position})"
        sign = ">" if self.reduce.reducer.combine == "max" else "<"
        return f"({value} {sign} {mine} || ({value} == {mine} && {position} < {at}))"


def _stage_kind(reduce: Reduce) -> str:
    kind = wgsl_type(reduce.value.dtype)
    if reduce.reducer.is_logical:
        return "bool"
    # Booleans are compared as numbers: false < true.
    return "u32" if kind == "bool" and reduce.reducer.is_position else kind


def _stage_value(writer: KernelWriter, reduce: Reduce, scope: Scope) -> str:
    text = writer.value(reduce.value, scope)
    if reduce.reducer.is_logical:
        return convert(text, reduce.value.dtype, bool_)
    if _stage_kind(reduce) != wgsl_type(reduce.value.dtype):
        return f"select(0u, 1u, {text})"
    return text


def _batches(kernel: Kernel) -> list[list[int]]:
    """Group consecutive stages that do not need one another's results: they share one pass over the
    inner points."""
    out: list[list[int]] = []
    for i, reduce in enumerate(kernel.reduces):
        needs = {cast(int, n.value) for n in ex.walk(reduce.value) if n.op == "reduced"}
        if out and not needs & set(out[-1]):
            out[-1].append(i)
        else:
            out.append([i])
    return out


class ReductionWriter:
    """Writes the passes of a kernel with reductions."""

    def __init__(self, writer: KernelWriter, geometry: Geometry) -> None:
        self.w = writer
        self.k = writer.kernel
        self.g = geometry
        self.body = writer.top.lines
        self.shared: dict[str, str] = {}
        self.lanes: list[list[Scope]] = []
        self.size = geometry.tx * geometry.ty
        n = self.k.inner_count
        self.begin, self.end = "", str(n)
        self.k, self.zeros = _without_zeros(self.k)
        self.per_block = geometry.ty * writer.lanes
        self.blocks = -(-n // self.per_block)
        varying = writer.limits.varying
        # Sizes of a class have one loop.
        self.turns = -(-(size_class(n) if varying else n) // self.per_block)
        nodes = sum(1 for _ in ex.walk(*self.k.expressions()))
        points = self.blocks * writer.lanes
        # Drivers write each function out where it is called: seconds for a row of 16 cosines of float64.
        self.long = any(e.dtype is float64 for e in self.k.expressions())
        self.static = (
            geometry.split == 1
            and not self.zeros
            and points <= _STATIC_POINTS
            and (points == 1 or (points * nodes <= _STATIC_NODES and not self.long))
            and not (not writer.limits.is_gpu and geometry.ty == 1 and points > 4)
            # Sizes of a class have one loop; a row is in the registers of so many that it is one block.
            and not (varying and points > 1 and (geometry.ty == 1 or geometry.columns))
        )

    def prologue(self, groups_per_point: int) -> tuple[int, int, int]:
        """Write the numbers that every pass starts with; returns the grid."""
        g, m = self.g, self.k.outer_count
        groups = -(-m // g.tx) * groups_per_point
        grid = fold_grid(groups, self.w.limits)
        add = self.body.append
        add(f"let group = i32({group_number(grid)});")
        point_group = "group"
        if groups_per_point > 1:
            add(f"let part = group % {groups_per_point};")
            point_group = f"(group / {groups_per_point})"
        self.invocation()
        add(f"let point = {point_group} * {g.tx} + tx;")
        whole = m % g.tx == 0 and grid[0] * grid[1] * grid[2] == groups
        exact = whole and not self.w.limits.varying
        if exact:
            add("let o = point;")
            self.active = ""
        else:
            # Barriers need every invocation, so a surplus one computes the last point again and
            # writes nothing.
            add(f"let active_point = point < {m};")
            add(f"let o = min(point, {m - 1});")
            self.active = "active_point"
        self.w.top.linear = "o"
        return grid

    def invocation(self) -> None:
        """Write which of the points of a workgroup an invocation works for, and which of those that share it it is."""
        g = self.g
        if g.ty == 1:
            tx, ty = "i32(lid)", "0"
        elif g.tx == 1:
            tx, ty = "0", "i32(lid)"
        elif g.columns:
            tx, ty = f"i32(lid % {g.tx}u)", f"i32(lid / {g.tx}u)"
        else:
            tx, ty = f"i32(lid / {g.ty}u)", f"i32(lid % {g.ty}u)"
        self.body += [f"let tx = {tx};", f"let ty = {ty};"]

    def write(self) -> None:
        """Write the stages and the stores."""
        if self.static:
            self.make_static_lanes()
        for stages in _batches(self.k):
            accs = self.run_batch(stages)
            self.gather(accs)
            self.publish(accs)
        self.epilogue()

    def make_static_lanes(self) -> None:
        """Name the inner points that this invocation keeps for all stages."""
        n, w = self.k.inner_count, self.w
        for block in range(self.blocks):
            whole = (block + 1) * self.per_block <= n
            start = f"ty * {w.lanes}" if w.lanes > 1 else "ty"
            if self.g.ty == 1:
                start = "0"
            text = f"{start} + {block * self.per_block}" if block else start
            name = f"k{block}"
            if whole:
                self.body.append(f"let {name} = {text};")
            else:
                self.body.append(f"let in{block} = {text} < {n};")
                self.body.append(f"let {name} = min({text}, {n - w.lanes});")
            self.lanes.append(self.lane_scopes(name, self.body))

    def lane_scopes(self, base: str, lines: list[str]) -> list[Scope]:
        """Return a scope for each neighbouring point that an invocation handles at once."""
        scopes: list[Scope] = []
        for lane in range(self.w.lanes):
            scope = Scope(parent=self.w.top, lines=lines, lane=lane)
            scope.linear = base if lane == 0 else f"({base} + {lane})"
            scope.base = scopes[0] if scopes else scope
            scopes.append(scope)
        return scopes

    def is_whole(self, block: int) -> bool:
        """Return whether a block of the loop has no point past the end."""
        return (block + 1) * self.per_block <= self.k.inner_count

    # -- one stage batch --

    def accumulators(self, stages: list[int]) -> list[_Accumulator]:
        """Declare the running states of these stages; return them."""
        out = []
        for stage in stages:
            reduce = self.k.reduces[stage]
            acc = _Accumulator(stage, reduce, _stage_kind(reduce), f"acc{stage}", f"at{stage}")
            self.body.append(f"var {acc.value}: {acc.kind} = {identity(reduce.op, acc.kind)};")
            if acc.is_arg:
                self.body.append(f"var {acc.position}: i32 = 2147483647;")
            out.append(acc)
        return out

    def merge(self, acc: _Accumulator, value: str, position: str, lines: list[str]) -> None:
        """Combine one more value into an accumulator."""
        if acc.is_arg:
            value = self.w.bind(value, lines)
            lines.append(
                f"if ({acc.better(value, position)}) {{ {acc.value} = {value}; {acc.position} = {position}; }}"
            )
        else:
            lines.append(f"{acc.value} = {combine(acc.reduce.op, acc.kind, acc.value, value)};")

    def block_values(
        self, acc: _Accumulator, scopes: list[Scope], inside: str, lines: list[str]
    ) -> None:
        """Combine the lanes of one block, as a tree, into an accumulator."""
        if acc.is_arg:
            target: list[str] = []
            for scope in scopes:
                value = _stage_value(self.w, acc.reduce, scope)
                self.merge(acc, value, scope.linear, target if inside else lines)
            if inside:
                # The names in `target` are used nowhere else.
                lines += [f"if ({inside}) {{", *("  " + t for t in target), "}"]
            return
        texts = [_stage_value(self.w, acc.reduce, s) for s in scopes]
        text = _tree(acc.reduce.op, acc.kind, texts)
        if inside:
            text = f"select({identity(acc.reduce.op, acc.kind)}, {text}, {inside})"
        self.merge(acc, text, "", lines)

    def run_batch(self, stages: list[int]) -> list[_Accumulator]:
        """Write the loop that computes stages of one iteration space; return their states."""
        if self.static:
            return self._static_batch(stages)
        accs = self.accumulators(stages)
        self.inner_loop(lambda scopes, lines: self._loop_body(accs, scopes, lines), accs)
        return accs

    def _static_batch(self, stages: list[int]) -> list[_Accumulator]:
        # All terms first, then one balanced tree: no running sum at all.
        out = []
        for stage in stages:
            reduce = self.k.reduces[stage]
            acc = _Accumulator(stage, reduce, _stage_kind(reduce), f"acc{stage}", f"at{stage}")
            if acc.is_arg:
                self.body.append(f"var {acc.value}: {acc.kind} = {identity(reduce.op, acc.kind)};")
                self.body.append(f"var {acc.position}: i32 = 2147483647;")
                for block, scopes in enumerate(self.lanes):
                    self.block_values(
                        acc, scopes, "" if self.is_whole(block) else f"in{block}", self.body
                    )
            else:
                texts = []
                for block, scopes in enumerate(self.lanes):
                    parts = [_stage_value(self.w, reduce, s) for s in scopes]
                    text = _tree(reduce.op, acc.kind, parts)
                    if not self.is_whole(block):
                        text = f"select({identity(reduce.op, acc.kind)}, {text}, in{block})"
                    texts.append(text)
                self.body.append(
                    f"var {acc.value}: {acc.kind} = {_tree(reduce.op, acc.kind, texts)};"
                )
            out.append(acc)
        return out

    def _loop_body(self, accs: list[_Accumulator], scopes: list[Scope], lines: list[str]) -> None:
        for acc in accs:
            self.block_values(acc, scopes, "", lines)

    def inner_loop(
        self, write: Callable[[list[Scope], list[str]], None], accs: list[_Accumulator]
    ) -> None:
        """Write a loop over this invocation's inner points."""
        w = self.w
        start = f"ty * {w.lanes}" if self.g.ty > 1 else "0"
        if self.begin:
            start = f"{self.begin} + {start}"
        if self.zeros:
            # Where all of them hold nothing is read.
            found = " && ".join(dict.fromkeys(w.value(c, w.top) for c in self.zeros))
            start = w.bind(f"select({start}, {self.end}, {found})", self.body)
        sums = [a for a in accs if a.reduce.op == "sum" and a.kind == "f32"]
        turns = self.turns // self.g.split
        blocked = bool(sums) and turns > 2 * _BLOCK
        renamed = {a.stage: a.value for a in sums}
        if blocked:
            for a in sums:
                a.value = f"part{a.stage}"
        step = self.per_block

        def turn(offset: int) -> list[str]:
            """Return the lines of one turn, `offset` points further."""
            lines: list[str] = []
            name = "k"
            if offset:
                name = w.fresh()
                lines.append(f"let {name} = k + {offset};")
            write(self.lane_scopes(name, lines), lines)
            return lines

        once = turn(0)
        # A loop that only reads: written out four times, so that four loads are on their way at
        # once. Drivers do not do it themselves, for the counters that engines put into loops.
        wide = w.limits.is_gpu and bool(accs) and turns >= _UNROLLED * 2
        wide = wide and len(once) * _UNROLLED <= _UNROLLED_LINES and not self.long
        four = [line for i in range(_UNROLLED) for line in turn(i * step)] if wide else []
        for a in sums:
            a.value = renamed[a.stage]

        def loops(begin: str, end: str, indent: str) -> list[str]:
            """Return the loop from `begin` to `end`, unrolled if that pays."""
            if not four:
                head = f"for (var k: i32 = {begin}; k < {end}; k = k + {step}) {{"
                return [indent + x for x in (head, *("  " + y for y in once), "}")]
            ahead, all_ = (_UNROLLED - 1) * step, _UNROLLED * step
            lines = [
                f"var k: i32 = {begin};",
                f"for (; k + {ahead} < {end}; k = k + {all_}) {{",
                *("  " + x for x in four),
                "}",
                f"for (; k < {end}; k = k + {step}) {{",
                *("  " + x for x in once),
                "}",
            ]
            return [indent + x for x in ("{", *("  " + y for y in lines), "}")]

        if not blocked:
            self.body += loops(start, self.end, "")
            self._add_zeros(accs)
            return
        # A long running sum loses digits: each block of terms gets its own partial sum.
        self.body.append(
            f"for (var kb: i32 = {start}; kb < {self.end}; kb = kb + {step * _BLOCK}) {{"
        )
        self.body += [f"  var part{a.stage}: f32 = 0f;" for a in sums]
        self.body.append(f"  let stop = min(kb + {step * _BLOCK}, {self.end});")
        self.body += loops("kb", "stop", "  ")
        self.body += [f"  {a.value} = {a.value} + part{a.stage};" for a in sums]
        self.body.append("}")
        self._add_zeros(accs)

    def _add_zeros(self, accs: list[_Accumulator]) -> None:
        """Give the sums of zeros of a loop that only some others need."""
        if len(set(self.zeros)) < 2:
            return
        for acc in accs:
            hidden = self.w.value(self.zeros[acc.stage], self.w.top)
            nothing = identity(acc.reduce.op, acc.kind)
            self.body.append(f"{acc.value} = select({acc.value}, {nothing}, {hidden});")

    def gather(self, accs: list[_Accumulator]) -> None:
        """Combine the accumulators of the invocations that share a point; all of them get the
        result."""
        if self.g.ty == 1:
            return
        width = self.subgroup(accs)
        if not width:
            self.gather_in_memory(accs)
            return
        self.exchange(accs, width)
        apart = self.g.ty // width
        if apart == 1:
            return
        # One word of each subgroup, which every subgroup of the point then reads.
        for acc in accs:
            line = self.shared_word(acc, f"lid / {width}u", self.size // width)
            self.body.append(f"if (lid % {width}u == 0u) {{ {line} }}")
        self.body.append("workgroupBarrier();")
        own = min(apart, width)
        for acc in accs:
            for more in range(0, apart, own):
                place = self.w.bind(f"u32(tx) * {apart}u + lid % {own}u + {more}u", self.body)
                theirs = _of_word(acc, f"s{acc.stage}[{place}]")
                at = f"p{acc.stage}[{place}]" if acc.is_arg else ""
                if more:
                    self.merge(acc, theirs, at, self.body)
                    continue
                self.body.append(f"{acc.value} = {theirs};")
                if at:
                    self.body.append(f"{acc.position} = {at};")
        self.exchange(accs, own)
        # Nobody may overwrite the shared words before everybody has read them.
        self.body.append("workgroupBarrier();")

    def subgroup(self, accs: list[_Accumulator]) -> int:
        """Return how many neighbouring invocations of a point read each other's registers; 0 where none do."""
        width = min(self.g.ty, self.w.limits.subgroup)
        two_words = any(acc.kind in TWO_WORDS.values() for acc in accs)
        return 0 if self.g.columns or two_words else width

    def exchange(self, accs: list[_Accumulator], count: int) -> None:
        """Combine the accumulators of `count` neighbours in a subgroup; all of them get the result."""
        half = count // 2
        while half:
            for acc in accs:
                # Named first: all of a subgroup take part, whatever they have found.
                words = [_as_word(acc), *([acc.position] if acc.is_arg else [])]
                named = [self.w.bind(f"subgroupShuffleXor({x}, {half}u)", self.body) for x in words]
                self.merge(acc, _of_word(acc, named[0]), named[-1], self.body)
            half //= 2

    def shared_word(self, acc: _Accumulator, place: str, words: int) -> str:
        """Return what puts an accumulator into one of so many words of the workgroup's memory."""
        kind = "u32" if acc.kind == "bool" else acc.kind
        stage = acc.stage
        self.shared[f"s{stage}"] = f"var<workgroup> s{stage}: array<{kind}, {words}>;"
        line = f"s{stage}[{place}] = {_as_word(acc)};"
        if acc.is_arg:
            self.shared[f"p{stage}"] = f"var<workgroup> p{stage}: array<i32, {words}>;"
            line += f" p{stage}[{place}] = {acc.position};"
        return line

    def gather_in_memory(self, accs: list[_Accumulator]) -> None:
        """Combine the accumulators where invocations see each other's by the workgroup's memory only."""
        g, add = self.g, self.body.append
        for acc in accs:
            add(self.shared_word(acc, "lid", self.size))
        add("workgroupBarrier();")
        half = g.ty // 2
        step = g.tx if g.columns else 1
        while half >= 1:
            add(f"if (ty < {half}) {{")
            for acc in accs:
                other = f"lid + {half * step}u"
                if acc.is_arg:
                    theirs = self.w.fresh()
                    add(f"  let {theirs} = s{acc.stage}[{other}];")
                    at = self.w.fresh()
                    add(f"  let {at} = p{acc.stage}[{other}];")
                    add(
                        f"  if ({acc.better(theirs, at)}) {{ {acc.value} = {theirs}; {acc.position} = {at}; "
                        f"s{acc.stage}[lid] = {theirs}; p{acc.stage}[lid] = {at}; }}"
                    )
                else:
                    theirs = _of_word(acc, f"s{acc.stage}[{other}]")
                    add(f"  {acc.value} = {combine(acc.reduce.op, acc.kind, acc.value, theirs)};")
                    add(f"  s{acc.stage}[lid] = {_as_word(acc)};")
            add("}")
            add("workgroupBarrier();")
            half //= 2
        first = "u32(tx)" if g.columns else (f"u32(tx) * {g.ty}u" if g.tx > 1 else "0u")
        for acc in accs:
            name = f"all{acc.stage}"
            text = f"s{acc.stage}[{first}]" if not acc.is_arg else f"p{acc.stage}[{first}]"
            add(f"let {name} = {text}{' != 0u' if acc.kind == 'bool' else ''};")
            if acc.is_arg:
                acc.position, acc.value = name, f"s{acc.stage}[{first}]"
            else:
                acc.value = name
        # Nobody may overwrite the shared words before everybody has read them.
        add("workgroupBarrier();")

    def publish(self, accs: list[_Accumulator]) -> None:
        """Make the results known to the expressions of later stages and stores."""
        for acc in accs:
            reduce = acc.reduce
            node = ex.reduced(acc.stage, reduce.dtype)
            if acc.is_arg:
                text = convert(acc.position, int32, reduce.dtype)
            elif reduce.reducer.is_logical:
                text = convert(acc.value, bool_, reduce.dtype)
            else:
                text = convert(acc.value, reduce.value.dtype, reduce.dtype)
                if not reduce.reducer.is_extreme:
                    text = wrap(reduce.dtype, text)
            self.w.top.env[node] = self.w.bind(text, self.body)

    def epilogue(self) -> None:
        """Write the stores and checks that follow the last stage."""
        writer, k = self.w, self.k
        inner = [s for s in k.stores if s.level == "inner"]
        checks = [c for c in k.checks if c.level == "inner"]
        writer.read_before_writing([s for s in k.stores if s.level == "outer"], [writer.top])
        if inner or checks:
            if self.static:
                for block, scopes in enumerate(self.lanes):
                    tests = [
                        t for t in (self.active, "" if self.is_whole(block) else f"in{block}") if t
                    ]
                    self.inner_stores(inner, checks, scopes, " && ".join(tests))
            else:
                self.inner_loop(
                    lambda scopes, _: self.inner_stores(inner, checks, scopes, self.active), []
                )
        guard = " && ".join(t for t in (self.active, "ty == 0" if self.g.ty > 1 else "") if t)
        for check in k.checks:
            if check.level == "outer":
                writer.check(check, writer.top, guard)
        outer = [s for s in k.stores if s.level == "outer"]
        if self.g.ty > 1 and _reads_any(inner, checks, {s.buffer for s in outer}):
            # The other invocations of a point still need what is overwritten.
            writer.top.lines.append("storageBarrier();")
        for store in outer:
            writer.store(store, writer.top, guard)

    def inner_stores(
        self, stores: list[Store], checks: list[Check], scopes: list[Scope], guard: str
    ) -> None:
        """Write the checks and stores of inner points."""
        writer = self.w
        for check in checks:
            for scope in scopes:
                writer.check(check, scope, guard)
        writer.read_before_writing(stores, scopes)
        for store in stores:
            slot = writer.slots[store.buffer]
            if slot.width > 1 and not slot.atomic:
                value = rounded_by_store(store.value, slot.slot.dtype)
                lines = scopes[0].lines
                writer.value(store.position, scopes[0])
                before = len(lines)
                writer.store_word(Store(store.buffer, store.position, value), scopes, "")
                if guard:
                    block = lines[before:]
                    del lines[before:]
                    lines += [f"if ({guard}) {{", *("  " + x for x in block), "}"]
            else:
                for scope in scopes:
                    writer.store(store, scope, guard)


def _without_zeros(kernel: Kernel) -> tuple[Kernel, list[Expr]]:
    """Return a kernel's sums without the zeros that each adds up where a condition holds, which hangs on the outer
    point alone, and these conditions: none, if one of them has no such.
    """
    rank, conditions = len(kernel.outer), list[Expr]()
    for r in kernel.reduces:
        zero = r.value.args[1] if r.value.op == "where" else None
        if r.op != "sum" or zero is None or zero.op != "const" or zero.value != 0:
            return kernel, []
        conditions.append(r.value.args[0])
    for node in ex.walk(*conditions):
        if node.op == "reduced" or (node.op == "index" and node.value[0] >= rank):
            return kernel, []
    sums = [replace(r, value=r.value.args[2]) for r in kernel.reduces]
    return replace(kernel, reduces=tuple(sums)), conditions


def _reads_any(stores: list[Store], checks: list[Check], buffers: set[int]) -> bool:
    roots = [
        *(e for s in stores for e in (s.position, s.value, s.valid) if e is not None),
        *(c.value for c in checks),
    ]
    return any(e.op == "load" and e.value in buffers for e in ex.walk(*roots))


def _as_word(acc: _Accumulator) -> str:
    return f"select(0u, 1u, {acc.value})" if acc.kind == "bool" else acc.value


def _of_word(acc: _Accumulator, word: str) -> str:
    return f"({word} != 0u)" if acc.kind == "bool" else word


def _tree(op: str, kind: str, texts: list[str]) -> str:
    while len(texts) > 1:
        pairs = [
            combine(op, kind, texts[i], texts[i + 1]) if i + 1 < len(texts) else texts[i]
            for i in range(0, len(texts), 2)
        ]
        texts = pairs
    return texts[0]


def writer_of(kernel: Kernel, limits: Limits, points: int) -> KernelWriter:
    """Return the writer of a reduction, which declares the buffers as so many points want them."""
    writer = KernelWriter(kernel, limits)
    writer.choose_lanes(points)
    if reads_columns(writer) and not any(s.level == "inner" for s in kernel.stores):
        writer.lanes = 1
        for i, slot in enumerate(kernel.buffers):
            writer.slots[i] = writer._declare(i, slot)
    return writer


def native_half(node: Expr, limits: Limits) -> Expr | None:
    """Return the operation of WGSL that makes a float32 of the bits of a float16, where an expression does and the
    device knows how.
    """
    word = half_of(node) if limits.has_halves else None
    return None if word is None else _half(word)


def natively(kernel: Kernel, limits: Limits) -> Kernel:
    """Return a kernel whose sums of four products of bytes are one operation each, and, where a device knows how, what
    the bits of a float16 are.
    """

    def other(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        """Return the operation of WGSL."""
        words = ex.dotted(node)
        if words is not None:
            return ex.make("dot4", int32, words)
        return native_half(node, limits)

    memo: dict[Expr, Expr] = {}
    reduces = [replace(r, value=ex.rewrite(r.value, other, memo)) for r in kernel.reduces]
    return replace(kernel, reduces=tuple(reduces))


def _half(word: Expr) -> Expr:
    """Return the operation that makes a float32 of the lower half of a word: of what it was cut out of."""
    place = 0
    for op, known in (("bitcast", None), ("and", 0xFFFF), ("shr", 16), ("shr", 0)):
        if word.op == op and (known is None or word.args[1].value == known):
            word = word.args[0]
            place = place or (op == "shr" and known == 16)
    return ex.make("half", float32, (word,), int(place))


def render_reduction(kernel: Kernel, limits: Limits) -> list[WgslPass]:
    """Return the shaders of a kernel with reductions: one, or two where the sums are split."""
    kernel = natively(kernel, limits)
    if limits.is_gpu:
        kernel = coarsened(kernel, CARD, limits.varying)
    writer = writer_of(kernel, limits, kernel.outer_count * kernel.inner_count)
    geometry = choose_geometry(writer)
    if geometry.split > 1:
        return _split_reduction(kernel, limits, writer, geometry)
    return [_draft(writer, geometry).finished()]


def render_reductions(kernels: Sequence[Kernel], limits: Limits) -> WgslPass | None:
    """Return one dispatch of several reductions, whose buffers and arguments are numbered in common
    and which need nothing of each other; None where they cannot be one."""
    kernels = [natively(k, limits) for k in kernels]
    if limits.is_gpu:
        kernels = [coarsened(k, CARD, limits.varying) for k in kernels]
    # Chosen for the largest: the others take workgroups of the same size.
    points = max(k.outer_count * k.inner_count for k in kernels)
    writers = [writer_of(k, limits, points) for k in kernels]
    geometry = choose_geometry(max(writers, key=lambda w: w.kernel.outer_count))
    if geometry.split > 1 or any(reads_columns(w) != reads_columns(writers[0]) for w in writers):
        return None
    return beside([_draft(w, geometry) for w in writers], limits)


def _draft(writer: KernelWriter, geometry: Geometry) -> Draft:
    kernel = writer.kernel
    r = ReductionWriter(writer, geometry)
    grid = r.prologue(1)
    r.write()
    shared = list(r.shared.values())
    return Draft(writer, r.body, shared, r.size, grid, has_status=bool(kernel.checks))


def _split_reduction(
    kernel: Kernel, limits: Limits, writer: KernelWriter, geometry: Geometry
) -> list[WgslPass]:
    """Few points with long rows: the workgroups of a first pass leave partial results, a second
    pass combines them."""
    m, n, parts = kernel.outer_count, kernel.inner_count, geometry.split
    stages = list(range(len(kernel.reduces)))
    # Words of scratch: one or two per stage, point and part, and one more for a position.
    offsets: list[tuple[int, int]] = []
    words = 0
    for reduce in kernel.reduces:
        at = words + m * parts * word_count(_stage_kind(reduce))
        offsets.append((words, at))
        words = at + (m * parts if reduce.reducer.is_position else 0)
    scratch = (4 * words,)
    r = ReductionWriter(writer, geometry)
    grid = r.prologue(parts)
    per_part = -(-n // parts)
    chunk = -(-per_part // r.per_block) * r.per_block
    r.body.append(f"let first = part * {chunk};")
    r.body.append(f"let last = min(first + {chunk}, {n});")
    r.begin, r.end = "first", "last"
    accs = r.accumulators(stages)
    r.inner_loop(lambda scopes, lines: r._loop_body(accs, scopes, lines), accs)
    r.gather(accs)
    lines = []
    for acc in accs:
        base, at = offsets[acc.stage]
        if acc.is_arg:
            name = writer.bind(acc.value, r.body)
            lines.append(f"scratch0[{at} + o * {parts} + part] = bitcast<u32>({acc.position});")
        else:
            name = acc.value
        lines += leave(name, acc.kind, base, f"o * {parts} + part")
    guard = " && ".join(t for t in (r.active, "ty == 0" if geometry.ty > 1 else "") if t)
    r.body += [f"if ({guard}) {{", *("  " + x for x in lines), "}"] if guard else lines
    first_pass = finish(writer, r.body, list(r.shared.values()), r.size, grid, scratch, False)

    final = KernelWriter(kernel, limits)
    final.choose_lanes(0)
    most = min(limits.max_workgroup_invocations, 256 if limits.is_gpu else 64)
    ty = min(most, power_below(parts)) if parts > 4 else 1
    tx = max(1, min(64 // ty, power_below(m)))
    f = ReductionWriter(final, Geometry(tx, ty, False))
    grid = f.prologue(1)
    accs = f.accumulators(stages)
    f.body.append(f"for (var k: i32 = ty; k < {parts}; k = k + {ty}) {{")
    inside: list[str] = []
    for acc in accs:
        base, at = offsets[acc.stage]
        value = taken(acc.kind, base, f"o * {parts} + k")
        position = ""
        if acc.is_arg:
            position = final.bind(f"bitcast<i32>(scratch0[{at} + o * {parts} + k])", inside)
        f.merge(acc, value, position, inside)
    f.body += ["  " + x for x in inside]
    f.body.append("}")
    f.gather(accs)
    f.publish(accs)
    f.epilogue()
    second_pass = finish(
        final, f.body, list(f.shared.values()), f.size, grid, scratch, bool(kernel.checks)
    )
    return [first_pass, second_pass]


def word_count(kind: str) -> int:
    """Return in how many words of scratch memory a value of a WGSL type lies."""
    return 2 if kind in TWO_WORDS.values() else 1


def leave(value: str, kind: str, base: int, place: str) -> list[str]:
    """Return the lines that leave a value at a place of the scratch memory that begins at word `base`."""
    if word_count(kind) == 2:
        at = f"{base} + 2 * ({place})"
        return [f"scratch0[{at}] = {value}.x;", f"scratch0[{at} + 1] = {value}.y;"]
    words = {"bool": f"select(0u, 1u, {value})", "u32": value}
    return [f"scratch0[{base} + {place}] = {words.get(kind, f'bitcast<u32>({value})')};"]


def taken(kind: str, base: int, place: str) -> str:
    """Return the text of a value that was left there."""
    if word_count(kind) == 2:
        at = f"{base} + 2 * ({place})"
        return f"{kind}(scratch0[{at}], scratch0[{at} + 1])"
    word = f"scratch0[{base} + {place}]"
    return {"bool": f"({word} != 0u)", "u32": word}.get(kind, f"bitcast<{kind}>({word})")
