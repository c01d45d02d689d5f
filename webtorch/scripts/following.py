"""Following a script: calls that match are answered with promised tensors, and computed at the end."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from time import perf_counter
from typing import Any

from webtorch.dispatch.call import (
    Args,
    Callee,
    Kwargs,
    active,
    alone,
    interpreted,
    looking,
    watched,
)
from webtorch.ir.graph import Node
from webtorch.ir.lines import user_line
from webtorch.ops.purity import look
from webtorch.runtime import arrivals
from webtorch.runtime import realize as realizing
from webtorch.runtime.backend import Executable
from webtorch.runtime.frozen import Frozen
from webtorch.runtime.realize import Runtime, open_runtimes
from webtorch.runtime.watch import watch
from webtorch.scripts.account import Account
from webtorch.scripts.changes import (
    changes,
    history_of,
    is_computed,
    lie_alike,
    made_as_usual,
    plain_offsets,
    tensors_in,
)
from webtorch.scripts.computing import compute
from webtorch.scripts.differing import difference
from webtorch.scripts.late import complete, give_all
from webtorch.scripts.leaving import make_calls
from webtorch.scripts.lent import Copies, is_touched
from webtorch.scripts.patience import FEWEST, Patience
from webtorch.scripts.prepared import prepare
from webtorch.scripts.recording import Note, Refused, begin, facts_along, program_of
from webtorch.scripts.resting import wake, wake_all
from webtorch.scripts.run import Run, keep_saved
from webtorch.scripts.script import NEW, NUMBER, OTHER, VARYING, Program, Step, leaves_of
from webtorch.scripts.turning import BEGIN, GO_ON, Turning
from webtorch.scripts.unfinished import Unfinished
from webtorch.tensors.base import LATE
from webtorch.tensors.engine import InPass, TensorHook
from webtorch.tensors.handle import add_hook
from webtorch.tensors.host import Draw, bindings, tracing
from webtorch.tensors.modes import mode
from webtorch.tensors.promotion import depending
from webtorch.tensors.storage import Left, Storage, writes
from webtorch.tensors.tape import EnoughComputed, looks_at_each
from webtorch.tensors.tensor import Tensor

_MAX_STEPS = 20_000
# How many calls may have come after one. Another one takes the place of the oldest whose program is not known well, or
# of the oldest of all.
MOST_BRANCHES = 16
# How often a run goes on after something was computed.
_MAX_PARTS = 64
# How many runs stand aside whose results are kept with their graphs.
_MAX_ASIDES = 32
# How often in a row a program may fail to run.
_MOST_FAILURES = 2
# How many runs whose graph may still be used are remembered.
_MAX_UNFINISHED = 4

# Kinds of steps that depend on nothing but their arguments.
_ALONE = frozenset({"operation", "gradient", "mark", "hook", "function", "part", "stop", "move"})
# Those of backward passes; and after how many that stood in no script steps are taken to be written by hand.
_PASSES = frozenset({"backward", "gradients"})
_MANY_STRAY = 3
# Roles of calls that are steps of scripts.
_STEPS = frozenset(
    {
        "operation",
        "alias",
        "turn",
        "gradients",
        "gradient",
        "mark",
        "hook",
        "function",
        "part",
        "step",
    }
)


class Follower:
    """The scripts of one thread. `count` what became of runs, for reports."""

    def __init__(self) -> None:
        self.thread = threading.current_thread().ident or 0
        self.lock = threading.RLock()
        self.root = Step(None)
        self.steps = 0
        self.run = Run(self.root)
        # Whether calls are looked at, and whether that is worth its time.
        self.on = False
        self.patience = Patience()
        # How many changes of tensors there had been when a run began to promise.
        self.changes = -1
        # Within how many calls the thread is.
        self.depth = 0
        # Within how many backward passes that call functions of the user's.
        self.passes = 0
        # Whether another thread ends the run's promises just now.
        self.elsewhere = False
        # How many backward passes stood in no script since an optimizer's step.
        self.stray = 0
        # What was computed since the run began: None where that was no whole program.
        self.computed: list[tuple[Runtime, Frozen, Executable] | None] = []
        # Whether the last of them was computed since there was too much of it.
        self.full = False
        # The last runs that gave something whose graph can still be used.
        self.unfinished: list[Unfinished] = []
        # Runs that ended with results whose graph is made when somebody looks.
        self.asides: list[Run] = []
        # The numbers among arguments that have been others, and those of which other ones change more than
        # an argument of the program: by line, callee and place.
        self.varying: set[object] = set()
        self.fixed: set[object] = set()
        # Operations that came between those of a script, with their lines.
        self.early: set[tuple[Callee, object]] = set()
        # Operations that compute what they are given, with the lines where they did.
        self.lookers: dict[Callee, set[object]] = {}
        # Whether such a call is being made, which is none of the run's: what it draws is not, either.
        self.looks = False
        # Those with which steps begin that gave what is there, such as a batch that lies where it is wanted.
        self.idle: dict[Callee, set[object]] = {}
        # Those of tensors that NumPy sees.
        self.copies = Copies()
        self.account = Account()
        self.counts, self.reasons = self.account.counts, self.account.reasons
        self.note = self.account.note

    # ---- what the runtime tells

    def ran(self, runtime: Runtime, frozen: Frozen | None, executable: Executable | None) -> None:
        """Take notice that pending work was computed, by one program or otherwise."""
        number = id(executable)
        changes.count += 1
        if self.on:
            whole_program = frozen is not None and executable is not None
            self.computed.append((runtime, frozen, executable) if whole_program else None)  # type: ignore[arg-type]
            self.full = runtime.ahead.full
            self.patience.tried.add(number)
            if not self.depth:
                self.read()
        elif (
            frozen is not None
            and runtime.debug < 4
            and not runtime.ahead.full
            and self.patience.ends(number, len(frozen.order))
        ):
            self.start()
            # It may be run by what is known of a call from now on.
            self.patience.tried.add(number)

    def start(self) -> None:
        """Begin to look at calls, if no other thread has begun."""
        with _listener.choosing:
            if _listener.follower is not self:
                return
            self.on = True
            self.patience.begin()
        # What was computed before was not counted.
        changes.count += 1
        # Not before: every look at an attribute takes twice the time where a class has this.
        for kind in (Tensor, Storage):
            setattr(kind, "__getattr__", look_at)  # noqa: B010
        active.follow(self)
        self.run = Run(self.root)
        self.computed.clear()

    def stop(self) -> None:
        """Look at calls no more, until programs have run often again."""
        self.settle("scripts are switched off")
        self.make_graphs("scripts are switched off")
        self.run.end()
        self.run = Run(self.root)
        self.on = False
        if self in _with_asides:
            _with_asides.remove(self)
        active.follow(None)
        # Nothing is promised any more, and what waited has its storage: attributes are as fast again as they were.
        give_all()
        wake_all()
        for kind in (Tensor, Storage):
            delattr(kind, "__getattr__")
        self.patience.pause()

    def lives(self) -> bool:
        """Whether the thread still runs."""
        return any(t.ident == self.thread for t in threading.enumerate())

    def begin(self, followed: bool = False) -> None:
        """Begin a run, where something has been computed."""
        if self.run.noted:
            self.run.end()
        if self.unfinished:
            self.drop_unfinished()
        if self.asides:
            self.asides = [run for run in self.asides if run.is_open]
            if len(self.asides) > _MAX_ASIDES:
                self.make_graph(self.asides[0], "many results are kept with their graphs")
        if self.copies.known and not (self.asides or self.unfinished):
            self.copies.forget_dead()
        self.counts["steps"] += 1
        if self.steps > _MAX_STEPS:
            self.root, self.steps = Step(None), 0
        self.run = Run(self.root)
        self.computed.clear()
        self.patience.run_ended(followed)
        if self.depth == 0:
            self.rest_if_in_vain()

    def rest_if_in_vain(self) -> bool:
        """Look at calls no more for a while, if that has cost more than it gained; return whether that is so."""
        if not self.patience.gives_up():
            return False
        self.stop()
        return True

    # ---- calls

    def call(self, callee: Callee, args: Args, kwargs: Kwargs) -> Any:
        """Answer a call, or make it."""
        if threading.get_ident() != self.thread:
            if callee.role == "gradient" and len(args) == 2:
                # No step looks at a gradient that it was given.
                self.settle("another thread sets a gradient")
            return made_as_usual(callee, args, kwargs)
        run = self.run
        if self.depth:
            if run.refused and active.count == 1:
                return alone(callee, args, kwargs)
            return interpreted(callee, args, kwargs)
        at = run.at
        # Most calls are answered without a look at what few have, and without a lock, which takes longer than all of
        # this: what another thread did meanwhile is seen afterwards.
        most = run.promised and active.count == 1 and not looking.count and watch.listener is None
        # What has been recorded in part is not followed: its program would do again what was done.
        if at.following and not run.taken and not run.refused:
            for step in at.following:
                if step.callee is callee and step.ready:
                    if most and step.plain and step.modes == (mode.grad, mode.inference):
                        out = step.answers(run, args, kwargs)  # type: ignore[misc]
                        if out is not OTHER:
                            run.at = step
                            if run.ended is None:
                                return out
                            # Another thread may have ended the run before this call was its: it is recorded.
                            out = self.ended(run, at, step, out)
                        else:
                            run.forget_given(*run.at.until[1:])
                    else:
                        out = self.answer(run, step, args, kwargs)
                    if out is OTHER and self.compute_given(run, args, kwargs):
                        out = self.answer(run, step, args, kwargs)
                    if out is not OTHER:
                        return out
            if run.at is not at:
                # Comparing has looked at what was promised, and something was computed.
                return self.call(callee, args, kwargs)
        if run.promised and at.kind == "computed" and not at.stays:
            out = self.begin_anew(run, callee, args, kwargs)
            if out is not OTHER:
                return out
        return self.by_role(run, callee, args, kwargs)

    def by_role(self, run: Run, callee: Callee, args: Args, kwargs: Kwargs) -> object:
        """Answer a call that no script has next, or make it."""
        role = callee.role
        if role == "parts" or role == "fact":
            return interpreted(callee, args, kwargs)
        if role == "gradient" and not (
            len(args) == 2 and (run.differentiated or run.sets_gradients or self.is_part(args[1]))
        ):
            # It calls nothing itself.
            return (
                callee.run(args, kwargs) if active.count == 1 else self.inside(callee, args, kwargs)
            )
        if role == "backward":
            return self.differentiate(callee, args, kwargs)
        if role == "hook" and (len(args) != 2 or kwargs or not self.has_function(run, args[0])):
            return self.other(run, callee, args, kwargs)
        if role == "mark" and run.slot_of(args[0]) is None:
            return self.mark(run, callee, args, kwargs)
        if role == "alias" and len(args) == 2:
            if self.lies_there(run, *args):
                # As `x.data += 1` ends: it is there already.
                return None
            if not self.may_move(run, *args):
                return self.other(run, callee, args, kwargs)
            self.make_graphs(f"{callee.name} is set", args)
            return self.operation(self.run, callee, args, kwargs)
        if role in _STEPS:
            return self.operation(run, callee, args, kwargs)
        if role == "flag":
            t = args[0]
            slot = run.slot_of(t) if run.promised and len(args) == 1 else None
            if slot is not None:
                if callee.name == "requires_grad" or not t._requires_grad:
                    return t._requires_grad == (callee.name == "requires_grad")
                return not facts_along(run.at)[slot].title
            if len(args) == 1:
                return interpreted(callee, args, kwargs)
        elif role == "place":
            if run.promised and run.slot_of(args[0]) is not None:
                there = run.lying_there()
                args = args if there is None else (there, *args[1:])
            return interpreted(callee, args, kwargs)
        return self.other(run, callee, args, kwargs)

    def has_function(self, run: Run, t: Tensor) -> bool:
        """Whether a tensor is a result of the run that has a gradient function."""
        slot = run.slot_of(t)
        if slot is None:
            return False
        return bool((facts_along(run.at) if run.promised else run.facts)[slot].title)

    def differentiate(self, callee: Callee, args: Args, kwargs: Kwargs) -> object:
        """Run a backward pass; the hooks that it calls are called like other code."""
        self.renew_copies()
        turning = Turning(callee, self.settle)
        found = self.call(BEGIN, (turning, *args), kwargs)
        if turning.function is None:
            return None
        self.passes += 1
        try:
            with InPass(turning, False, True):
                while turning.function is not None:
                    given = turning.function(*found)
                    if active.follower is self:
                        found = self.call(GO_ON, (turning, given), {})
                    else:
                        found = turning.go_on(given)
        except BaseException:
            self.give_up("a hook fails")
            turning.close()
            raise
        finally:
            self.passes -= 1
        return None

    def lies_there(self, run: Run, t: Tensor, value: object) -> bool:
        """Whether a value is what a tensor from outside is, on the same memory."""
        if run.external_of(t) is None or not isinstance(value, Tensor) or not lie_alike(t, value):
            return False
        slot = run.slot_of(value)
        if slot is None:
            return value._storage is t._storage
        facts = (facts_along(run.at) if run.promised else run.facts)[slot]
        return facts.storage == run.place_of_storage(t)

    def may_move(self, run: Run, t: Tensor, value: object) -> bool:
        """Whether a tensor from outside may get other memory, of the same form, within a script."""
        return (
            t._whole
            and t._base is None
            and run.slot_of(t) is None
            and isinstance(value, Tensor)
            and lie_alike(t, value)
            and not t._levels
        )

    def mark(self, run: Run, callee: Callee, args: Args, kwargs: Kwargs) -> object:
        """Have gradients recorded for a tensor from outside, or not: a step of the script if it has seen it."""
        t, value = args[0], args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
        if (
            t._requires_grad is value
            and t._base is None
            and history_of(t) is None
            and not self.is_looked_at()
        ):
            return t
        if any(last.slot_of(t) is not None for last in self.asides):
            return self.other(run, callee, args, kwargs)
        before: list[Run | Unfinished] = [run, *self.asides, *self.unfinished]
        if any(last.was_given_one_of(args) for last in before):
            return self.operation(run, callee, args, kwargs)
        if weakref.getweakrefcount(t):
            # From here on it is not enough that tensors are those of before.
            run.careful = True
            return self.inside(callee, args, kwargs)
        # No script has ever seen it.
        self.depth += 1
        try:
            return interpreted(callee, args, kwargs)
        finally:
            self.depth -= 1

    def other(self, run: Run, callee: Callee, args: Args, kwargs: Kwargs) -> object:
        """Make a call that no script has, unless it only reads."""
        between = False
        if callee.role != "reader":
            why = f"{callee.name} is called"
            self.make_graphs(why, (*args, *kwargs.values()))
            self.settle(why)
            run = self.run
            between = run.at is self.root and not (run.taken or run.refused)
            if between:
                # As `numpy` of a result after a step: nothing has been called that a script may have.
                run.end()
                run = self.run = Run(self.root)
            else:
                self.give_up(why)
                run = self.run
        out = self.inside(callee, args, kwargs)
        if between and self.run is run and any(r.pending for r in open_runtimes()):
            self.give_up(why)
        elif self.computed and self.run is run:
            self.read()
        return out

    def is_part(self, value: object) -> bool:
        """Whether an argument is a tensor that the run gave, or promises to write, or has one."""
        run = self.run
        return any(
            run.slot_of(t) is not None or t._storage in run.undo or t._storage in run.homes
            for t in tensors_in((value,))
        )

    def drop_unfinished(self) -> None:
        """Let go of the last runs, but for where they ended."""
        for last in self.unfinished:
            last.drop()
        self.unfinished = [last for last in self.unfinished if last.is_open()][-_MAX_UNFINISHED:]

    def learn(self, args: Iterable[object], marks: bool = False) -> None:
        """Have runs go on where one ended, this one as well if nothing came between, if an argument needs the graph
        of what it gave, or is a leaf of that which the call `marks`.
        """

        def is_for(last: Unfinished | Run) -> bool:
            """Whether an argument has to do with a run."""
            return last.was_given_one_of(args) if marks else last.gave_one_of(args)

        needed = next((last for last in self.unfinished if is_for(last)), None)
        run = self.run
        if needed is None or run.promised or run.taken or run.refused:
            self.drop_unfinished()
        aside = next((last for last in self.asides if is_for(last)), None)
        if aside is not None:
            self.go_on_with(aside)
        if needed is not None:
            self.unfinished = [last for last in self.unfinished if last is not needed]
            needed.step.go_on()
            self.steps += 1
            if needed.run is not None:
                self.run = needed.run
                self.go_on(needed.run, needed.program, needed.saved)

    def go_on_with(self, last: Run) -> None:
        """Have runs go on where one ended that stands aside, this one as well if nothing came between. Where it may not
        come back its graph is made when it is looked at.
        """
        at, run = last.at.parent, self.run
        assert at is not None
        if at.goes_on is None:
            at.go_on()
            self.steps += 1
        if not last.may_come_back:
            # What has written since, as another optimizer's step, is to be a part of it from now on.
            assert at.goes_on is not None
            at.goes_on.stays = True
            return
        if not (run.promised or run.taken or run.refused):
            assert at.goes_on is not None
            self.asides.remove(last)
            at.goes_on.until = last.at.until
            last.come_back(at.goes_on)
            self.run = last
            self._promise(last)

    def begin_anew(self, run: Run, callee: Callee, args: Args, kwargs: Kwargs) -> object:
        """Answer a call with which a script begins, where another one has been computed and may go on; else return
        OTHER.
        """
        steps = [s for s in self.root.following if s.callee is callee and s.ready]
        if not steps or run.is_kept:
            return OTHER
        fresh = self.run = Run(self.root)
        self._no_promises(run)
        self.put_aside(run)
        for step in steps:
            out = self.answer(fresh, step, args, kwargs)
            if out is not OTHER:
                return out
        if self.run is fresh and run in self.asides and run.may_come_back:
            self.asides.remove(run)
            run.come_back(run.at)
            self.run = run
            self._promise(run)
        return OTHER

    def put_aside(self, run: Run) -> None:
        """Let a run stand aside as long as somebody has what it gave."""
        run.stand_aside()
        self.asides.append(run)
        if self not in _with_asides:
            _with_asides.append(self)

    def make_graph(self, run: Run, why: str) -> None:
        """Make the graph of what a run gave that stands aside."""
        runtime = run.runtime_of()
        with contextlib.nullcontext() if runtime is None else runtime.lock, self.lock:
            if run not in self.asides:
                return
            self.asides.remove(run)
            if not run.is_open:
                return
            # Nothing that the calls are given is promised to be written.
            self.settle(why)
            self.note(why)
            with run.as_then():
                self.leave(run)

    def make_graphs(self, why: str, values: Iterable[object] | None = None) -> None:
        """Make the graphs of runs that stand aside, of all or of those that have to do with one of some values."""
        for run in list(self.asides):
            if values is None or any(
                run.slot_of(t) is not None or any(x is t for x in run.externals)
                for t in tensors_in(values)
            ):
                self.make_graph(run, why)

    def inside(self, callee: Callee, args: Args, kwargs: Kwargs) -> Any:
        """Make a call as usual; what it calls itself is not looked at."""
        self.depth += 1
        try:
            if self.run.refused and active.count == 1:
                # No script sees it: it may have changed anything.
                changes.count += 1
                return alone(callee, args, kwargs)
            return made_as_usual(callee, args, kwargs)
        finally:
            self.depth -= 1

    def give_up(self, why: str) -> None:
        """Keep what follows out of scripts until something is computed, and hold nothing until then."""
        self.settle(why)
        run = self.run
        if not run.refused:
            self.note(why)
            run.end()
            self.run = Run(self.root)
            self.run.refused = why

    def _take_stopped(self, run: Run, note: Note, name: str) -> None:
        """Note a call that ended when what it waited for was computed."""
        if self.run is run and not self.computed:
            try:
                self.take(run, note.stopped())
            except Refused as reason:
                self.give_up(f"{name}: {reason}")

    def _called_beside(self, callee: Callee, args: Args, kwargs: Kwargs, why: str) -> object:
        """Make a call that stands beside and of which no note can be made; it is refused where it stays pending."""
        run = self.run
        out = self.inside(callee, args, kwargs)
        if self.run is run and not (is_computed(out) and not self.computed):
            self.give_up(why)
            if self.computed:
                self.begin()
        return out

    def usual(self, callee: Callee, args: Args, kwargs: Kwargs, why: str) -> object:
        """Make a call that cannot stand in a script, nor what follows until something is computed."""
        self.give_up(why)
        self.patience.lost += 1
        run = self.run
        if callee is BEGIN:
            callee, args = args[0].callee, args[1:]
        out = self.inside(callee, args, kwargs)
        if callee.role in _PASSES and not self.is_looked_at():
            self.stray += 1
            if self.stray > _MANY_STRAY:
                # With no optimizer's step the calls from here on begin a script: what they are given is computed.
                self.compute_all()
        if self.computed and self.run is run:
            self.begin()
        return out

    def compute_all(self) -> None:
        """Compute all that is pending."""
        self.depth += 1
        try:
            for runtime in open_runtimes():
                runtime.realize()
        finally:
            self.depth -= 1

    def comes_again(self, run: Run, callee: Callee) -> bool:
        """Whether a call is how a run began that has gone on after something was computed, and has used up the graph
        since: nothing else would end it where steps are written by hand.
        """
        if self.stray <= _MANY_STRAY or run.program is None or not run.differentiated:
            return False
        first = run.at.path()[0]
        return first.callee is callee and first.line == user_line()

    def operation(self, run: Run, callee: Callee, args: Args, kwargs: Kwargs) -> object:
        """Answer a call of an operation."""
        if not (run.promised or run.taken) and self.rest_if_in_vain():
            # Where each run ends within a call, nobody could before.
            return interpreted(callee, args, kwargs)
        if callee.role == "step":
            self.stray = 0
        elif callee.role == "gradients":
            self.renew_copies()
            run = self.run
        if self.unfinished or self.asides:
            if not _has_no_graph(callee):
                self.learn((*args, *kwargs.values()), marks=callee.role == "mark")
            elif not (run.promised or run.taken):
                self.drop_unfinished()
            run = self.run
        if run.refused:
            return self.usual(callee, args, kwargs, run.refused)
        if self.is_looked_at():
            return self.usual(callee, args, kwargs, "somebody looks at each operation")
        if callee in self.lookers and user_line() in self.lookers[callee]:
            return self.look(callee, args, kwargs)
        others = self.copies.others
        if callee.role == "operation" and not (others and (callee, user_line()) in others):
            found = self.copies.stand_in(callee, args, kwargs)
            if found is not None:
                return self.with_copies(callee, args, kwargs, *found)
        again = self.comes_again(run, callee)
        if run.promised and run.is_complete and (again or not run.at.following):
            # All has been called that the script has.
            self.resolve(run)
            return self.call(callee, args, kwargs)
        if again and run.taken:
            self.compute_all()
            if self.computed:
                self.read()
                return self.call(callee, args, kwargs)
        self.wait()
        run = self.run
        if callee.role == "operation" and not any(map(self.is_part, (*args, *kwargs.values()))):
            return self.beside(run, callee, args, kwargs)
        if run.promised and run.is_complete:
            # It may have come after something was computed.
            self.resolve(run)
            return self.call(callee, args, kwargs)
        if run.promised:
            self.settle(difference(run, callee, args, kwargs))
            run = self.run
        return self.record(run, callee, args, kwargs)

    def with_copies(
        self,
        callee: Callee,
        args: Args,
        kwargs: Kwargs,
        given: Args,
        named: Kwargs,
        copies: list[tuple[Storage, Node]],
    ) -> object:
        """Make a call of tensors that NumPy sees with copies of them, unless they are needed themselves."""
        out = self.call(callee, given, named)
        if not is_touched(out, copies):
            return out
        self.copies.others.add((callee, user_line()))
        self.copies.known.clear()
        self.give_up(f"{callee.name} gives or writes memory that NumPy sees")
        return self.inside(callee, args, kwargs)

    def renew_copies(self) -> None:
        """Before a backward pass: it is to see what NumPy has written since."""
        changed = self.copies.changed() if self.copies.known else []
        if changed:
            self.give_up("memory that NumPy sees was written")
            self.copies.renew(changed)

    def look(self, callee: Callee, args: Args, kwargs: Kwargs) -> object:
        """Make a call that computes what it is given, and may compute more."""
        self.depth += 1
        try:
            for t in tensors_in((*args, *kwargs.values())):
                t._storage.realize()
        finally:
            self.depth -= 1
        if self.computed:
            self.read()
        self.looks = True
        try:
            out = self.inside(callee, args, kwargs)
        finally:
            self.looks = False
        self.computed.clear()
        return out

    def beside(self, run: Run, callee: Callee, args: Args, kwargs: Kwargs) -> object:
        """Make a call that needs nothing of what the run gave, such as a view of a batch or a copy from elsewhere. It
        stands in the script if something of it remains to be computed, or to be differentiated.
        """
        at = run.at
        ends = at.kind == "computed" and not any(s.ready for s in at.following)
        known = any(s.callee is callee for s in at.following)
        if run.promised and (ends or known or (callee, user_line()) in self.early):
            # What the script has next is called with something else, or this comes in its place again.
            self.settle(difference(run, callee, args, kwargs))
            run = self.run
        first = run.at is self.root and not run.begun
        if first and callee in self.idle and user_line() in self.idle[callee]:
            out = self.inside(callee, args, kwargs)
            if self.run is run and (self.computed or not is_computed(out)):
                self.idle[callee].discard(user_line())
                self.give_up(f"{callee.name} has computed nothing before")
                if self.computed:
                    self.begin()
            return out
        if run.promised:
            out = self.inside(callee, args, kwargs)
            if self.run is run and not is_computed(out):
                # It comes to the same, that it was called before what is called now.
                self.early.add((callee, user_line()))
                self.give_up(f"{callee.name} was called too early")
            return out
        return self.record(run, callee, args, kwargs, beside=True)

    def is_looked_at(self) -> bool:
        """Whether somebody else sees operations in this thread, so that none may be left out."""
        if active.count > 1 and watched():
            return True
        return looking.count > 0 and (
            tracing.active or looks_at_each(parts=False) or watch.before is not None
        )

    def refuse(self, why: str) -> None:
        """Keep what follows out of scripts until something is computed."""
        if self.run.refused:
            # Nothing is promised or prepared any more: PyTorch's operators come here each.
            return
        changes.count += 1
        give_all()
        if not self.depth and threading.get_ident() == self.thread:
            self.give_up(why)

    # ---- following

    def answer(self, run: Run, step: Step, args: Args, kwargs: Kwargs) -> object:
        """Answer a call if it is that of a step, else return OTHER."""
        at = run.at
        if looking.count or active.count > 1:
            if self.is_looked_at() or step.modes != run.modes():
                run.forget_given(*at.until[1:])
                return OTHER
        elif step.modes != (mode.grad, mode.inference):
            return OTHER
        if watch.listener is not None and step.line != user_line():
            # A profile tells of the lines that ran, of which two may do the same.
            run.forget_given(*at.until[1:])
            return OTHER
        if not run.promised and self.changes != changes.count:
            # Tensors may have been changed after that was counted, too.
            changes.count += 1
            self.changes = changes.count
        matches = step.matches or prepare(step)
        if step.plain and run.promised:
            # As in `call`, which knows more of the others.
            out = step.answers(run, args, kwargs)  # type: ignore[misc]
            if out is not OTHER:
                run.at = step
                return out if run.ended is None else self.ended(run, at, step, out)
        elif (
            not (step.kind == "gradients" and self.copies.changed())
            and matches(run, args, kwargs)
            and (step.kind in _ALONE or run.watches(step, args))
            and run.at is at
        ):
            return self.follow_safely(run, step, args)
        run.forget_given(*run.at.until[1:])
        return OTHER

    def follow_safely(self, run: Run, step: Step, args: Args) -> object:
        """Answer a call that matched, while no other thread ends the run's promises."""
        with self.lock:
            # Unless another thread has ended the run's promises meanwhile.
            followed = self.run is run and not run.taken
            if step.kind == "move" and self.asides:
                followed &= not any(
                    last.slot_of(t) is not None or last.was_given_one_of((t,))
                    for last in self.asides
                    for t in args
                )
            out = self.follow(run, step, args) if followed else OTHER
        if not followed:
            run.forget_given(*run.at.until[1:])
        elif step.kind == "step":
            # It ends with a computation.
            self.resolve(run)
        return out

    def ended(self, run: Run, at: Step, step: Step, out: object) -> object:
        """Return what a step gave where another thread has looked at what was promised, OTHER if that was before."""
        with self.lock:
            if run.ended is step:
                return out
            run.at = at
            run.forget_slots(at.until[0])
            run.forget_given(*at.until[1:])
            return OTHER

    def follow(self, run: Run, step: Step, args: Args) -> object:
        """Answer a call that matched."""
        if not run.promised:
            self._promise(run)
        run.at = step
        if step.writes and step.kind != "step":
            run.count_writes(step.writes, 1)
            for j, *_ in step.writes:
                storage = run.externals[j]._storage
                if storage not in run.undo and storage not in run.homes:
                    run.undo[storage] = storage.node
                    del storage.node
        given = step.gives(run)  # type: ignore[misc]
        if step.kind == "step":
            return given
        if step.kind == "operation" or step.kind == "gradients":
            run.differentiated |= step.kind == "gradients"
            return given
        if step.kind == "backward":
            run.differentiated = True
            args[0].follow(run, step)
            return given
        if step.kind == "function":
            keep_saved(args, promised=True)
            run.is_kept = True
            for number, f in step.changed:
                t = run.slots[number]()
                if t is not None:
                    t._requires_grad = f.requires_grad
                    if f.made_by is not None:
                        t._made_by = f.made_by
            return None
        if step.kind == "part":
            run.is_kept = True
            return None
        if step.kind == "stop":
            raise EnoughComputed
        if step.kind == "hook":
            hooks = run.hooks.setdefault(run.slot_of(args[0]) or 0, OrderedDict())
            return add_hook(hooks, TensorHook(args[1], step.place))
        if step.kind == "mark":
            given._requires_grad = step.mark()
            if step.results[0] == "external":
                # The next run compares it again.
                self.changes = -1
                bindings.modules += 1
            return given
        if step.kind == "move":
            self.move(run, step, args[0])
        elif step.kind == "gradient":
            run.sets_gradients = True
            for t in leaves_of(args):
                t._grad = args[1]
        return None

    def move(self, run: Run, step: Step, t: Tensor) -> None:
        """Let a tensor from outside have other memory, whose value is promised or there."""
        home, before = run.home(step.place, t), (t._storage, t._counter)
        if home is not t._storage and t._counter is t._storage:
            t._counter = Left(t._storage)
        t._storage = home
        run.note_move(step.args[0].number, before, step.place)
        # The next run compares it again.
        self.changes = -1
        bindings.change()

    def resolve(self, run: Run, graph: bool = False) -> None:
        """Compute what a run has promised, or make its calls in the usual way. What needs the graph goes on after
        that, unless the `graph` is wanted, too.
        """
        runtime = run.runtime_of()
        # In the order in which another thread takes them that computes, and meets what is promised.
        with contextlib.nullcontext() if runtime is None else runtime.lock, self.lock:
            if not run.promised or (run.at.kind == "computed" and not graph):
                return
            # What else is computed meanwhile is no part of the run.
            mine = threading.get_ident() == self.thread
            self.depth += mine
            self.elsewhere = not mine
            try:
                self._no_promises(run)
                at = run.ended = run.at
                while at is not run.at:
                    # The thread that follows was about to answer a call.
                    at = run.ended = run.at
                program = at.program_for(run.given) if at.ready else None
                if program is not None and not program.confirmed:
                    program = None
                # What a context keeps would be alive for as long as the run is.
                now = graph or not mine or (run.is_kept and at.goes_on is None)
                if program is not None and program.open and now:
                    program = None
                # What is done as well, once all has been given, may compute more.
                soon = mine and not self.asides and not self.unfinished
                try:
                    done = program is not None and compute(
                        run, at, program, lambda: self.finish(run, at, program), soon
                    )
                except BaseException:
                    run.move_on()
                    if self.run is run:
                        self.leave(run)
                    raise
                if not done:
                    run.move_on()
                    self.leave(run)
                    if program is not None:
                        program.failures += 1
                        if program.failures > _MOST_FAILURES:
                            at.forget_programs()
            finally:
                self.depth -= mine
                self.elsewhere = False

    def finish(self, run: Run, at: Step, program: Program) -> None:
        """Go on after a program has given what a run has promised."""
        program.failures = 0
        self.counts["followed"] += 1
        self.patience.gain(run)
        if at.goes_on is not None and run.may_go_on:
            run.go_on(at.goes_on, program, run.saved)
            self.counts["steps"] += 1
            self.patience.in_vain = 0
            self.computed.clear()
            self._promise(run)
            return
        if program.open and run.is_open:
            self.put_aside(run)
        if self.run is run:
            self.begin(followed=True)

    def wait(self) -> None:
        """Wait for another thread that ends the run's promises."""
        if self.elsewhere:
            with self.lock:
                pass

    def settle(self, why: str) -> None:
        """End the run's promises, for this reason."""
        run = self.run
        if run.promised:
            if not run.is_complete:
                self.note(why)
            self.resolve(run, graph=True)
        self.wait()

    def rest(self, why: str, changed: bool = True) -> None:
        """End the run, and let go of what it was given. Another thread needs nothing of it. `changed`: tensors may be
        changed by what comes.
        """
        if changed:
            changes.count += 1
            give_all()
        if threading.get_ident() != self.thread:
            return
        self.settle(why)
        if not self.depth:
            self.run.end()
            self.run = Run(self.root)
            self.computed.clear()

    def _promise(self, run: Run) -> None:
        """Have whoever looks at what is promised come here."""
        if self.changes < 0:
            # It has come back, or goes on, after tensors were changed.
            changes.count += 1
            self.changes, run.careful = changes.count, True
        run.promised = True
        _promising.append(self)
        writes.guard = _guard

    def _no_promises(self, run: Run) -> None:
        """Let storages that are to be written hold what they did, and nobody wait for what is promised."""
        run.promised = False
        _promising.remove(self)
        if not _promising:
            writes.guard = None
        for storage, node in run.undo.items():
            storage.node = node

    # ---- leaving a script

    def leave(self, run: Run) -> None:
        """Make the calls that matched in the usual way, and go on recording."""
        run.add_resting()
        run.number_externals()
        if run is self.run:
            begin(run)
        started = perf_counter()
        path = [] if run.ended is None else run.ended.path()
        mine = threading.get_ident() == self.thread
        self.depth += mine
        try:
            make_calls(run, path)
        except BaseException:
            if self.run is run:
                self.begin()
            raise
        finally:
            self.depth -= mine
            self.patience.lost += len(path)
            self.account.left(len(path), perf_counter() - started)
        if self.run is run and (self.computed or path[-1].kind == "step"):
            self.begin()

    # ---- recording

    def record(
        self, run: Run, callee: Callee, args: Args, kwargs: Kwargs, beside: bool = False
    ) -> object:
        """Make a call, and note it. What stands `beside` is not noted where it gives values."""
        if run.at is self.root and not run.begun:
            self.compute_given(run, args, kwargs)
            # Calls that this one was compared with in vain may have left some.
            run.given.clear()
            begin(run)
        counts = run.counts
        try:
            note = Note(run, callee, args, kwargs)
        except Refused as reason:
            run.forget_given(*counts)
            called = self._called_beside if beside else self.usual
            return called(callee, args, kwargs, f"{callee.name}: {reason}")
        places = note.places()
        if places:
            self.varying.update(note.differing(places))
            for key, place in places:
                if key in self.varying and key not in self.fixed:
                    args, kwargs = note.vary(place, args, kwargs)
        # By another thread, which may have taken what is pending.
        elsewhere = bool(self.computed)
        looked, look.looked = look.looked, False
        drawn = {i: g._offset for i, (g, *_) in run.generators.items()}
        decided = len(run.given.decided)
        try:
            out = self.inside(callee, args, kwargs)
        except EnoughComputed:
            self._take_stopped(run, note, callee.name)
            raise
        except BaseException:
            run.forget_given(*counts)
            raise
        looks, look.looked = look.looked, looked or look.looked
        draws = {i: g._offset for i, (g, *_) in run.generators.items()} != drawn
        if self.run is not run:
            return out
        if beside and not self.computed and is_computed(out) and not note.has_written():
            if run.at is self.root:
                self.idle.setdefault(callee, set()).add(note.step.line)
            run.forget_given(*counts)
            plain_offsets(out)
            return out
        try:
            if self.computed and note.step.kind != "step":
                if self.full:
                    raise Refused("too much is pending without a read")
                if elsewhere:
                    raise Refused("another thread has computed something")
                if not any(t._requires_grad for t in tensors_in((out,))):
                    self.lookers.setdefault(callee, set()).add(note.step.line)
                raise Refused("it looks at values")
            if looks and not draws and note.step.kind == "operation":
                raise Refused("it depends on more than its arguments")
            step = note.made(out)
            if len(run.given.decided) > decided:
                made = list(run.given.decided.values())[decided:]
                note.decide(made, (*args, *kwargs.values()))
        except Refused as reason:
            self.give_up(f"{callee.name}: {reason}")
            if self.computed:
                self.begin()
            return out
        self.take(run, step)
        if self.computed:
            self.read()
        return out

    def take(self, run: Run, step: Step) -> None:
        """Let a recorded call be the run's next step, which may be known."""
        following = run.at.following
        self.patience.lost += 1
        run.sets_gradients |= step.kind == "gradient"
        known = next(
            (
                s
                for s in following
                if s.callee is step.callee
                and s.key == step.key
                and (watch.listener is None or s.line == step.line)
                and s.can_come()
            ),
            None,
        )
        if known is None:
            known = step
            # Those of optimizers that are gone go, too.
            following[:] = [s for s in following if s.can_come()]
            if len(following) >= MOST_BRANCHES:
                following.remove(next((s for s in following if not s.ready), following[0]))
            following.append(step)
            self.steps += 1
        run.taken.append(step)
        run.at = known

    def compute_given(self, run: Run, args: Args, kwargs: Kwargs) -> bool:
        """Compute what a run is given and is pending: another thread has recorded it, such as a batch. Return whether
        there was something. What other processes send is not waited for.
        """
        if self.is_looked_at():
            return False
        given = [
            x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and run.slot_of(x) is None
        ]
        pending = [
            s
            for t in given
            if (s := t._storage) not in run.undo
            and s.node.kind != "buffer"
            and not (s.runtime.arriving and arrivals.waits(s.node))
        ]
        if pending:
            self.depth += 1
            try:
                for storage in pending:
                    storage.realize()
            finally:
                self.depth -= 1
            self.computed.clear()
        return bool(pending)

    def read(self) -> None:
        """Something was computed: the run is over, and what was called may be a script."""
        run, computed = self.run, self.computed
        if run.promised:
            return
        if self.passes:
            self.note("a value is looked at within a backward pass")
        elif (
            run.at is not self.root
            and not run.refused
            and len(computed) == 1
            and computed[0] is not None
        ):
            try:
                program, saved = program_of(run, *computed[0])
            except Refused as reason:
                self.note(str(reason))
            else:
                self.keep(run, program)
                if program.open - program.partly:
                    parts = sum(s.kind == "computed" for s in run.at.path())
                    if run.at.goes_on is None and 0 < parts < _MAX_PARTS:
                        # Whose graph was needed once is taken to need it at each read: a chain is learned at once.
                        run.at.go_on()
                        self.steps += 1
                    if run.at.goes_on is not None:
                        self.go_on(run, program, saved)
                        self.counts["steps"] += 1
                        return
                    if parts < _MAX_PARTS:
                        self.run = Run(self.root)
                        self.begin()
                        self.unfinished.append(Unfinished(run, program, saved))
                        return
        self.begin()

    def go_on(self, run: Run, program: Program, saved: list[Node]) -> None:
        """Go on recording after something was computed."""
        assert run.at.goes_on is not None
        run.go_on(run.at.goes_on, program, saved)
        run.number_externals()
        begin(run)
        self.computed.clear()

    def keep(self, run: Run, program: Program) -> None:
        """Keep what the calls of a run became. The second time that it is the same it is followed from then on."""
        step = run.at
        old = step.program_for(program.given)
        pairs = [
            (known, p)
            for s, taken in zip(step.path(), run.taken, strict=True)
            for known, p in zip(s.patterns(), taken.patterns(), strict=True)
            if p.form in (NEW, VARYING)
        ]
        if old is not None and old.key() == program.key():
            program.varied |= old.varied
            program.behind = old.behind | program.behind
            program.varied |= {i for i, value in program.given.items() if old.given[i] != value}
            program.confirmed = True
            step.program = program
        else:
            if old is not None and self.are_fixed(step, old, program):
                return
            for known, p in pairs:
                if known.value != p.value and not known.loose:
                    # What the programs from here on were recorded with is not so any more.
                    step.forget_programs()
                    break
            for known, p in pairs:
                known.value = p.value
            step.program = program
            return
        for known, p in pairs:
            if p.form == NEW:
                known.loose = bool(p.loose) and known.loose is not False
            elif known.value != p.value:
                # What differed came to the program's arguments, and to nothing else.
                known.loose = True
        up: Step | None = step
        while up is not None:
            up.ready = True
            up = up.parent
        self.counts["scripts"] += 1
        self.patience.in_vain = 0

    def are_fixed(self, step: Step, old: Program, program: Program) -> bool:
        """Whether programs of the same calls differ because they are given other numbers, which from now on are
        compared.
        """
        first = None
        for s in step.path():
            for i, p in enumerate([*s.args, *s.kwargs]):
                if p.form == NUMBER and old.given[p.number] != program.given[p.number]:
                    self.fixed.add((s.line, s.callee, i))
                    first = first or s
        # A run that goes on may have forgotten it already.
        if first is not None and first.parent is not None and first in first.parent.following:
            first.parent.following.remove(first)
        return first is not None

    # ---- random numbers

    def before_drawing(self) -> None:
        """Let the calls that promised something draw before another one does."""
        if threading.get_ident() == self.thread and self.run.promised:
            self.settle("random numbers are drawn")

    def before_setting(self, generator: object) -> None:
        """Give up what has drawn from a generator that is set now."""
        if threading.get_ident() == self.thread and id(generator) in self.run.generators:
            self.give_up("a generator is set that was drawn from")

    def moved(self, generator: Any) -> None:
        """Take notice that a generator stands where it has stood before, or comes back from there."""
        found = self.run.generators.get(id(generator))
        if found is not None and threading.get_ident() == self.thread:
            self.run.generators[id(generator)] = *found[:2], generator._offset

    def draw(self, generator: Any, seed: int, offset: int) -> tuple[int, int]:
        """Return what was drawn as numbers that remember it, while calls are recorded."""
        run = self.run
        if not self.depth or self.looks or run.refused or threading.get_ident() != self.thread:
            return seed, offset
        _, start, end = run.generators.get(id(generator), (generator, offset, offset))
        if end != offset:
            run.refused = "random numbers are drawn by what is no call"
        run.generators[id(generator)] = generator, start, generator._offset
        drawn, counter = Draw(seed), Draw(offset)
        drawn.generator = counter.generator = generator
        counter.relative = (offset - start) % 2**64
        return drawn, counter


_DETACH: Callee = Tensor.detach.callee  # type: ignore[attr-defined]

# What a promised tensor that has its value may still lack.
_GRAPH = ("_grad_fn", "_output_nr")
# What a storage lacks that is to be written, or that rests.
_OF_STORAGE = ("node", "version")
# Followers that have promised something, and those that have runs aside.
_promising: list[Follower] = []
_with_asides: list[Follower] = []


def _has_no_graph(callee: Callee) -> bool:
    """Whether what a call gives has no part in a graph, whatever it is given."""
    if not mode.grad or callee is _DETACH or callee.role == "alias":
        return True
    return callee.op is not None and not callee.op.differentiable


def _guard(storage: Storage) -> None:
    """Before a storage is written: whoever promised what reads it computes it now."""
    for follower in list(_promising):
        if follower.run.was_given(storage) or storage in follower.run.handed:
            follower.settle("a tensor that was read is written by what is no call")


def look_at(holder: Tensor | Storage, name: str) -> Any:
    """Give a promised tensor, or a storage that is to be written, what it lacks."""
    if name not in LATE and name not in _OF_STORAGE:
        # The class says what is missing.
        return object.__getattribute__(holder, name)
    given = complete(holder) if isinstance(holder, Tensor) else wake(holder)
    if not given:
        for follower in list(_promising):
            run = follower.run
            if (
                run.holds(holder)
                if isinstance(holder, Tensor)
                else holder in run.undo or holder in run.homes
            ):
                if not run.is_complete:
                    follower.note("a value is looked at")
                follower.resolve(run, graph=run.at.kind == "computed" or name in _GRAPH)
                given = True
                break
        if name in _GRAPH:
            _make_graph_of(holder)
    there = _listener.follower
    if given or there is not None:
        # Another thread may have been about to give it.
        with contextlib.nullcontext() if given or there is None else there.lock:
            if isinstance(holder, Tensor):
                complete(holder)
            with contextlib.suppress(AttributeError):
                return object.__getattribute__(holder, name)
    raise AttributeError(
        f"{type(holder).__name__!r} object has no attribute {name!r}", name=name, obj=holder
    )


def _make_graph_of(t: Tensor | Storage) -> None:
    """Make the graph of a tensor that a run gave which stands aside."""
    for follower in list(_with_asides):
        for run in list(follower.asides):
            if isinstance(t, Tensor) and run.slot_of(t) is not None:
                follower.make_graph(run, "a graph is looked at")


class _Listener:
    """Tells the follower of the thread that computes."""

    def __init__(self) -> None:
        self.follower: Follower | None = None
        # How many operations a program has, at least, that may be part of a script.
        self.fewest = FEWEST
        self.choosing = threading.Lock()
        # Those of the threads that have computed, and what they have seen: one is on at a time.
        self.known: dict[int, Follower] = {}

    def ran(self, runtime: Runtime, frozen: Frozen | None, executable: Executable | None) -> None:
        """Take notice that pending work was computed."""
        follower = self.follower
        thread = threading.get_ident()
        if follower is None or follower.thread != thread:
            follower = self._chosen(thread)
        if follower.thread == thread:
            follower.ran(runtime, frozen, executable)
        elif (follower.run.begun or follower.run.taken) and None not in follower.computed:
            # It may have taken what the follower's thread has recorded.
            follower.computed.append(None)

    def wants_programs(self) -> bool:
        """Whether this thread records a run that goes on: each read in it is a part of the script."""
        follower = self.follower
        return (
            follower is not None
            and follower.run.program is not None
            and bool(follower.run.taken)
            and follower.thread == threading.get_ident()
        )

    def _chosen(self, thread: int) -> Follower:
        """Return the follower of this thread, if no other thread has one that is on."""
        with self.choosing:
            found = self.follower
            if found is not None and found.on and not found.lives():
                found.stop()
            if found is None or not found.on:
                if thread not in self.known:
                    self.known = {i: f for i, f in self.known.items() if f.lives()}
                    self.known[thread] = Follower()
                found = self.follower = self.known[thread]
            return found


_listener = _Listener()


def _forget() -> None:
    """A setting has changed that operations read: scripts of before do not hold any more."""
    follower = _listener.follower
    if follower is not None and follower.on:
        follower.settle("a setting changes")
        follower.make_graphs("a setting changes")
        follower.root, follower.steps = Step(None), 0
        follower.begin()


depending.append(_forget)


def begin_to_look() -> None:
    """Look for steps that come again, from now on."""
    realizing.listener = _listener


def follower() -> Follower:
    """Return who follows scripts, for reports."""
    found = _listener.follower
    return Follower() if found is None else found


def steps() -> tuple[int, int]:
    """Return how many steps followed a script, of how many."""
    counts = follower().counts
    return counts["followed"], counts["steps"]


def report() -> str:
    """Say how many steps followed a script, where and why others did not, and what that cost."""
    return follower().account.text()


def stop_to_look() -> None:
    """Let no step follow a script."""
    realizing.listener = None
    follower = _listener.follower
    if follower is not None and follower.on:
        follower.stop()
    _listener.follower = None
    _listener.known.clear()


if os.environ.get("WEBTORCH_SCRIPTS") != "0":
    begin_to_look()
