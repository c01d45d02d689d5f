"""Steps that follow a script: what was called between two computations, when it is called again.

An ordinary training loop calls the same operations at each step. Once a program has run twice, the calls between
two computations are recorded: in order, which results feed which, what is a number, what was written in place, and
the program that they became (`recording`). A later step follows that script (`following`): each call is compared with
the script's next entries, and gets a tensor whose shape and type are known, but which has neither a value nor a place
in a graph. At the end the program runs on what is there now, and what is still alive gets its value.

A promised tensor lacks `_storage`, `_grad_fn` and their like, and a storage that the step wrote lacks `node`. Whoever
looks at one of these gets to `__getattr__`, and the script ends there: if all calls had matched, the program runs;
otherwise the calls that matched are made in the usual way, and what was promised becomes what they give. So no other
part of the library needs to know of scripts, and a result never depends on when it is read.

Scripts that begin alike share their steps, so they form a tree. Related: the trie of PyTorch's lazy tensors, Terra
(NeurIPS 2021), JANUS (NSDI 2019), inline caches of dynamic languages.
"""

from webtorch.scripts.following import begin_to_look, report, steps, stop_to_look

__all__ = ["begin_to_look", "report", "steps", "stop_to_look"]
