"""Files of exported programs (`.pt2`), as PyTorch writes and reads them: JSON, and weights as they lie in memory."""

from __future__ import annotations

import io
import json
import math
import operator
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, TypeAlias, cast

import webtorch.aten.parts as parts
from webtorch.aten.dispatch import OpOverload
from webtorch.functions.creation import frombuffer
from webtorch.fx.export.program import CallSpec, ExportedProgram
from webtorch.fx.export.signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from webtorch.fx.export.sizes import Dim, Marked
from webtorch.fx.graph import Graph
from webtorch.fx.node import Node
from webtorch.io import checkpoint
from webtorch.io.pytorch_file import put
from webtorch.ir import dtype as types
from webtorch.ir.dtype import DType
from webtorch.nn import Parameter
from webtorch.ops.primitive import empty
from webtorch.tensors import formats
from webtorch.tensors.device import device
from webtorch.tensors.tensor import Tensor
from webtorch.utils import _pytree as pytree

File: TypeAlias = str | os.PathLike[str] | BinaryIO
Json: TypeAlias = dict[str, Any]

# PyTorch's numbers of types, layouts and memory formats.
_TYPES: dict[int, DType] = {
    1: types.uint8, 2: types.int8, 3: types.int16, 4: types.int32, 5: types.int64, 6: types.float16, 7: types.float32,
    8: types.float64, 9: types.complex32, 10: types.complex64, 11: types.complex128, 12: types.bool_,
    13: types.bfloat16, 28: types.uint16, 34: types.uint32, 35: types.uint64,
}  # fmt: skip
_LAYOUTS = {
    1: formats.sparse_coo, 2: formats.sparse_csr, 3: formats.sparse_csc, 4: formats.sparse_bsr, 5: formats.sparse_bsc,
    7: formats.strided,
}  # fmt: skip
_MEMORY = {
    1: formats.contiguous_format, 2: formats.channels_last, 3: formats.channels_last_3d, 4: formats.preserve_format,
}  # fmt: skip
_CODES: dict[object, int] = {
    value: code for table in (_TYPES, _LAYOUTS, _MEMORY) for code, value in table.items()
}
# How values of these classes stand in a file; a bool is an int, too.
_KINDS: tuple[tuple[str, type, Callable[[Any], object]], ...] = (
    ("as_bool", bool, bool), ("as_int", int, int), ("as_string", str, str), ("as_scalar_type", DType, _CODES.get),
    ("as_layout", formats.layout, _CODES.get), ("as_memory_format", formats.memory_format, _CODES.get),
)  # fmt: skip
# What is worked out with sizes.
_OPERATORS: dict[str, Callable[..., object]] = {
    f"_operator.{f.__name__}": f
    for f in (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg)
}  # fmt: skip
_SIGNS = {operator.add: "+", operator.mul: "*", operator.sub: "-", operator.floordiv: "//"}
# Where a file says what each of its inputs is: kind, name of the field that has the target.
_INPUTS = {
    "parameter": (InputKind.PARAMETER, "parameter_name"),
    "buffer": (InputKind.BUFFER, "buffer_name"),
    "tensor_constant": (InputKind.CONSTANT_TENSOR, "tensor_constant_name"),
}
_NAMES = {kind: (name, target) for name, (kind, target) in _INPUTS.items()}


# ---- writing
# ------------------------------------------------------------------------------------------------------------


def save(
    ep: ExportedProgram,
    f: File,
    *,
    extra_files: Mapping[str, Any] | None = None,
    opset_version: Mapping[str, int] | None = None,
    pickle_protocol: int = 2,
) -> None:
    """Write a program to a file (`.pt2`) or a binary stream. `extra_files`: texts that go with it, by name."""
    if not isinstance(ep, ExportedProgram):
        raise TypeError(
            f"The 'ep' parameter must be an instance of 'ExportedProgram', got '{type(ep).__name__}' instead."
        )
    if isinstance(f, (str, os.PathLike)):
        with open(f, "wb") as stream:
            save(ep, stream, extra_files=extra_files, opset_version=opset_version)
        return
    sample = io.BytesIO()
    checkpoint.save(ep.example_inputs, sample)
    with zipfile.ZipFile(f, "w", zipfile.ZIP_STORED) as archive:
        put(archive, "archive_format", b"pt2")
        put(archive, "archive_version", b"0")
        put(archive, "byteorder", b"little")
        put(archive, ".data/version", b"6\n")
        put(archive, "models/model.json", _Writer(ep).text(opset_version or {"aten": 10}))
        put(archive, "data/sample_inputs/model.pt", sample.getvalue())
        for folder, name, prefix, tensors in (
            ("weights", "model_weights_config", "weight", ep.state_dict),
            ("constants", "model_constants_config", "tensor", ep.constants),
        ):
            config = _put_tensors(archive, f"data/{folder}", prefix, tensors)
            put(archive, f"data/{folder}/{name}.json", json.dumps({"config": config}).encode())
        for name, text in (extra_files or {}).items():
            put(archive, f"extra/{name}", text.encode() if isinstance(text, str) else text)


def _put_tensors(
    archive: zipfile.ZipFile, folder: str, prefix: str, tensors: Mapping[str, Tensor]
) -> Json:
    """Write tensors, one that has several names once, and return where they are."""
    config: Json = {}
    written: dict[int, str] = {}
    for name, x in tensors.items():
        if id(x) not in written:
            written[id(x)] = f"{prefix}_{len(written)}"
            put(archive, f"{folder}/{written[id(x)]}", x.detach().contiguous()._to_bytes())
        config[name] = {
            "path_name": written[id(x)],
            "is_param": isinstance(x, Parameter),
            "use_pickle": False,
            "tensor_meta": _meta(x),
        }
    return config


def _meta(x: Tensor, sizes: Sequence[Json] | None = None) -> Json:
    """Return what a file says of a tensor, which lies in order."""
    strides, step = [], 1
    for size in reversed(x.shape):
        strides.append({"as_int": step})
        step *= max(size, 1)
    return {
        "dtype": _CODES[x.dtype],
        "sizes": [{"as_int": s} for s in x.shape] if sizes is None else sizes,
        "requires_grad": x.requires_grad,
        "device": _device(x.device),
        "strides": strides[::-1],
        "storage_offset": {"as_int": 0},
        "layout": _CODES[formats.strided],
    }


def _device(x: device) -> Json:
    # A tensor on "meta" stands for one of the example's.
    return {"type": "cpu" if x.type == "meta" else x.type, "index": x.index}


class _Writer:
    """A program as JSON."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        # Names of sizes in the file, and of each node that is one: the expression, its value in the example.
        self.symbols = {d: f"s{i}" for i, d in enumerate(dict.fromkeys(program._where.values()))}
        self.sizes: dict[str, tuple[str, int]] = {}
        self.inputs = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}

    def text(self, opset: Mapping[str, int]) -> bytes:
        """Return the file's text."""
        program, nodes = self.program, []
        tensors: Json = {}
        for node in program.graph.nodes:
            x = node.meta.get("val")
            if isinstance(x, Tensor):
                tensors[node.name] = _meta(x, self._shape(node, x))
            if node.op == "call_function" and node.target is not operator.getitem:
                nodes.append(self._node(node))
        signature = program.graph_signature
        graph = {
            "inputs": [self._input(s.arg) for s in signature.input_specs],
            "outputs": [self._value(x) for x in _outputs(program.graph)],
            "nodes": nodes,
            "tensor_values": tensors,
            "sym_int_values": {n: _expression(*found) for n, found in self.sizes.items()},
            "sym_bool_values": {},
            "is_single_tensor_return": False,
            "custom_obj_values": {},
            "sym_float_values": {},
        }
        whole = {
            "inputs": [], "outputs": [], "in_spec": pytree.treespec_dumps(program.call_spec.in_spec),
            "out_spec": pytree.treespec_dumps(program.call_spec.out_spec), "forward_arg_names": program._names,
        }  # fmt: skip
        module = {
            "graph": graph,
            "signature": {
                "input_specs": [self._spec(s) for s in signature.input_specs],
                "output_specs": [
                    {"user_output": {"arg": self._value(x)}} for x in _outputs(program.graph)
                ],
            },
            "module_call_graph": [{"fqn": "", "signature": whole}],
            "metadata": {},
            "treespec_namedtuple_fields": {},
        }
        ranges = {n: {"min_val": d.min, "max_val": d.max} for d, n in self.symbols.items()}
        return json.dumps({
            "graph_module": module, "opset_version": dict(opset), "range_constraints": ranges,
            "schema_version": {"major": 8, "minor": 1}, "verifiers": ["TRAINING"], "torch_version": "2.13.0",
            "guards_code": [],
        }).encode()  # fmt: skip

    def _shape(self, node: Node, x: Tensor) -> list[Json] | None:
        """Return the sizes of an input, some of which change."""
        if node.op != "placeholder" or node.name not in self.program._names:
            return None
        i = self.program._names.index(node.name)
        found = []
        for d, size in enumerate(x.shape):
            dim = self.program._where.get((i, d))
            changes = dim is not None
            found.append(_expression(self._symbol(dim), size) if changes else {"as_int": size})
        return found

    def _symbol(self, dim: Dim | None) -> str:
        assert dim is not None
        return f"Symbol('{self.symbols[dim]}', positive=True, integer=True)"

    def _input(self, arg: TensorArgument | ConstantArgument) -> Json:
        return self._value(self.inputs[arg.name] if isinstance(arg, TensorArgument) else arg.value)

    def _spec(self, spec: InputSpec) -> Json:
        if spec.kind is InputKind.USER_INPUT:
            if isinstance(spec.arg, ConstantArgument):
                value = self._value(spec.arg.value)
                return {"constant_input": {"name": spec.arg.name, "value": value}}
            return {"user_input": {"arg": {"as_tensor": {"name": spec.arg.name}}}}
        name, target = _NAMES[spec.kind]
        found: Json = {"arg": {"name": spec.arg.name}, target: spec.target}
        if spec.kind is InputKind.BUFFER:
            found["persistent"] = bool(spec.persistent)
        return {name: found}

    def _node(self, node: Node) -> Json:
        target: Any = node.target
        found: Json = {
            "metadata": {}, "is_hop_single_tensor_return": None, "name": node.name, "target": "", "inputs": [],
        }  # fmt: skip
        if isinstance(target, OpOverload):
            schema = target._schema
            found["target"] = f"torch.ops.{target}"
            places = [a for a in schema.arguments if not a.kwarg_only]
            kinds = {a.name: a.type for a in schema.arguments}
            given = dict(zip([a.name for a in places], node.args, strict=False))
            for kind, values in ((1, given), (2, node.kwargs)):
                for name, value in values.items():
                    arg = self._value(value, kinds.get(name, ""))
                    found["inputs"].append({"name": name, "arg": arg, "kind": kind})
        else:
            found["target"] = f"_operator.{target.__name__}"
            found["inputs"] = [
                {"name": name, "arg": self._value(value), "kind": 1}
                for name, value in zip("ab", node.args, strict=False)
            ]
        found["outputs"] = self._results(node)
        return found

    def _results(self, node: Node) -> list[Json]:
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            return [{"as_tensor": {"name": node.name}}]
        if isinstance(value, tuple):
            parts_of = {n.args[1]: n.name for n in node.users if n.target is operator.getitem}
            listed = [
                {"name": parts_of.get(i, f"{node.name}_unused_{i}")} for i in range(len(value))
            ]
            target = cast("OpOverload", node.target)
            if target._schema.returns[0].type.endswith("[]"):
                return [{"as_tensors": listed}]
            return [{"as_tensor": one} for one in listed]
        if value is None and node.target not in _SIGNS and "sym_size" not in str(node.target):
            return [{"as_none": True}]
        self.sizes[node.name] = self._worked_out(node)
        return [{"as_sym_int": {"as_name": node.name}}]

    def _worked_out(self, node: Node) -> tuple[str, int]:
        """Return the expression of a size, and its value in the example."""
        if node.target not in _SIGNS:
            source, d = cast("tuple[Node, int]", node.args)
            i = self.program._names.index(source.name)
            return self._symbol(self.program._where[i, d]), source.meta["val"].shape[d]
        terms = [
            self.sizes[x.name] if isinstance(x, Node) else (f"Integer({x})", cast("int", x))
            for x in node.args
        ]
        text = _SIGNS[cast("Any", node.target)].join([f"({t})" for t, _ in terms])
        return text, cast("Any", node.target)(*[n for _, n in terms])

    def _value(self, x: object, kind: str = "") -> Json:
        """Return an argument; `kind` is its type in the operator's schema."""
        if isinstance(x, (list, tuple)):
            return self._listed(x, kind)
        if isinstance(x, Node):
            if isinstance(x.meta.get("val"), Tensor):
                return {"as_tensor": {"name": x.name}}
            return {"as_sym_int": {"as_name": x.name}}
        if isinstance(x, float):
            return {
                "as_float": x
                if math.isfinite(x)
                else str(x).replace("inf", "Infinity").replace("nan", "NaN")
            }
        if isinstance(x, complex):
            return {"as_complex": {"real": x.real, "imag": x.imag}}
        for name, cls, told in _KINDS:
            if isinstance(x, cls):
                return {name: told(x)}
        if isinstance(x, device):
            return {"as_device": _device(x)}
        if x is None:
            return {"as_none": True}
        raise NotImplementedError(f"torch.export.save: {x!r} has no place in a file of programs")

    def _listed(self, values: Sequence[Any], kind: str) -> Json:
        if any(isinstance(x, (list, tuple)) for x in values):
            return {"as_int_lists": [list(x) for x in values]}
        one = [self._value(x) for x in values]
        names = {next(iter(x)) for x in one}
        if "as_tensor" in names or kind.startswith("Tensor"):
            if "as_none" in names or kind.startswith("Tensor?"):
                return {"as_optional_tensors": one}
            return {"as_tensors": [x["as_tensor"] for x in one]}
        if "as_sym_int" in names:
            return {"as_sym_ints": [x.get("as_sym_int", x) for x in one]}
        if len(names) > 1:
            names = {"as_float"}
        name = names.pop() if names else "as_float" if kind.startswith("float") else "as_int"
        return {f"{name}s": [next(iter(x.values())) for x in one]}


def _outputs(graph: Graph) -> Sequence[object]:
    return cast(
        "Sequence[object]", next(n for n in reversed(graph.nodes) if n.op == "output").args[0]
    )


def _expression(text: str, value: int) -> Json:
    return {"as_expr": {"expr_str": text, "hint": {"as_int": value}}}


# ---- reading
# ------------------------------------------------------------------------------------------------------------


def load(
    f: File,
    *,
    extra_files: dict[str, Any] | None = None,
    expected_opset_version: Mapping[str, int] | None = None,
) -> ExportedProgram:
    """Read a program that `save` wrote, here or in PyTorch. `extra_files`: names of texts to be filled in."""
    with zipfile.ZipFile(f) as archive:
        names = {n.partition("/")[2]: n for n in archive.namelist()}

        def entry(name: str) -> bytes:
            """Return the bytes of a file in the archive, by its name below the archive's folder."""
            if name not in names:
                raise RuntimeError(
                    f"torch.export.load: {f} has no {name}: it is no exported program"
                )
            return archive.read(names[name])

        found = json.loads(entry("models/model.json"))
        if found["schema_version"]["major"] != 8:
            raise RuntimeError(
                f"torch.export.load: the file has version {found['schema_version']} of PyTorch's schema, and webtorch "
                "reads version 8: export it anew with PyTorch 2.5 or later"
            )
        for name in extra_files or ():
            extra_files[name] = entry(f"extra/{name}").decode()  # type: ignore[index]
        tensors: list[dict[str, Tensor]] = []
        for folder, config in (
            ("weights", "model_weights_config"), ("constants", "model_constants_config"),
        ):  # fmt: skip
            stated = json.loads(entry(f"data/{folder}/{config}.json"))["config"]
            tensors.append(_tensors(stated, lambda n, at=f"data/{folder}": entry(f"{at}/{n}")))  # type: ignore[misc]
        sample = None
        if len(names.get("data/sample_inputs/model.pt", "")) and entry(
            "data/sample_inputs/model.pt"
        ):
            sample = checkpoint.load(
                io.BytesIO(entry("data/sample_inputs/model.pt")), weights_only=True
            )
    return _Reader(found).program(tensors[0], tensors[1], sample)


def _tensors(config: Json, entry: Callable[[str], bytes]) -> dict[str, Tensor]:
    """Return tensors by name; those that are told alike are one."""
    found: dict[str, Tensor] = {}
    known: dict[str, Tensor] = {}
    for name, stated in config.items():
        key = json.dumps(stated, sort_keys=True)
        if key not in known:
            if stated["use_pickle"]:
                x = checkpoint.load(io.BytesIO(entry(stated["path_name"])), weights_only=True)
            else:
                x = _tensor(stated["tensor_meta"], entry(stated["path_name"]))
            wants = stated["tensor_meta"]["requires_grad"]
            known[key] = Parameter(x, wants) if stated["is_param"] else x
        found[name] = known[key]
    return found


def _tensor(meta: Json, data: bytes) -> Tensor:
    shape = [s["as_int"] for s in meta["sizes"]]
    kind = _TYPES[meta["dtype"]]
    place = device(meta["device"]["type"])
    if not data:
        return empty(tuple(shape), kind, place)
    flat = frombuffer(bytearray(data), dtype=kind)
    strides = [s["as_int"] for s in meta["strides"]]
    found: Tensor = flat.as_strided(shape, strides, meta["storage_offset"]["as_int"])
    return found.to(place)


class _Reader:
    """A program of what a file says."""

    def __init__(self, found: Json) -> None:
        self.found, self.module = found, found["graph_module"]
        self.stated = self.module["graph"]
        self.graph = Graph()
        self.nodes: dict[str, Node] = {}
        self.dims: dict[str, Dim] = {}

    def program(
        self, state: dict[str, Tensor], constants: dict[str, Tensor], sample: Any
    ) -> ExportedProgram:
        """Return the program."""
        specs = [self._spec(s) for s in self.module["signature"]["input_specs"]]
        for spec in specs:
            self._placeholder(spec.arg.name)
        for stated in self.stated["nodes"]:
            self._call(stated)
        results = [self._value(x) for x in self.stated["outputs"]]
        for stated in self.module["signature"]["output_specs"]:
            if next(iter(stated)) != "user_output":
                raise NotImplementedError(
                    f"torch.export.load: an output that is a {next(iter(stated))}: export without run_decompositions()"
                )
        self.graph.output(tuple(results))
        outputs = [
            OutputSpec(
                OutputKind.USER_OUTPUT,
                TensorArgument(x.name) if isinstance(x, Node) else ConstantArgument("", x),
            )
            for x in results
        ]
        own = [s.arg for s in specs if s.kind is InputKind.USER_INPUT]
        leaves = [
            self.nodes[a.name].meta["val"] if isinstance(a, TensorArgument) else a.value
            for a in own
        ]
        where: Marked = {}
        for i, arg in enumerate(own):
            if isinstance(arg, TensorArgument):
                for d, size in enumerate(self.stated["tensor_values"][arg.name]["sizes"]):
                    if "as_expr" in size:
                        where[i, d] = self._dim(size["as_expr"]["expr_str"])
        call = self.module["module_call_graph"][0]["signature"]
        form = CallSpec(*[pytree.treespec_loads(call[name]) for name in ("in_spec", "out_spec")])
        args, kwargs = pytree.tree_unflatten(leaves, form.in_spec) if sample is None else sample
        return ExportedProgram(
            self.graph, ExportGraphSignature(specs, outputs), state, constants, form, [a.name for a in own], leaves,
            where, (args, kwargs),
        )  # fmt: skip

    def _dim(self, text: str) -> Dim:
        """Return the dimension of a size that is a symbol; of another expression one that nobody else has."""
        symbol = re.fullmatch(r"Symbol\('(\w+)'[^()]*\)", text)
        name = symbol[1] if symbol else f"size_{len(self.dims)}"
        if name not in self.dims:
            stated = self.found["range_constraints"].get(name, {})
            self.dims[name] = Dim(name, min=stated.get("min_val"), max=stated.get("max_val"))
        return self.dims[name]

    def _spec(self, stated: Json) -> InputSpec:
        name, found = next(iter(stated.items()))
        if name == "user_input" and "as_tensor" in found["arg"]:
            arg = TensorArgument(found["arg"]["as_tensor"]["name"])
            return InputSpec(InputKind.USER_INPUT, arg, None)
        if name == "constant_input":
            constant = ConstantArgument(found["name"], self._value(found["value"]))
            return InputSpec(InputKind.USER_INPUT, constant, None)
        if name not in _INPUTS:
            raise NotImplementedError(f"torch.export.load: an input that is a {name}: {found}")
        kind, target = _INPUTS[name]
        return InputSpec(
            kind, TensorArgument(found["arg"]["name"]), found[target], found.get("persistent")
        )

    def _placeholder(self, name: str) -> None:
        node = self.graph.placeholder(name)
        node.name = name
        self._known(node, name)

    def _known(self, node: Node, name: str) -> None:
        """Note a node by its name in the file."""
        node.name = name
        self.nodes[name] = node
        stated = self.stated["tensor_values"].get(name)
        if stated is not None:
            sizes = [
                s["as_int"] if "as_int" in s else s["as_expr"]["hint"]["as_int"]
                for s in stated["sizes"]
            ]
            node.meta["val"] = empty(tuple(sizes), _TYPES[stated["dtype"]], "meta")

    def _call(self, stated: Json) -> None:
        target: Any
        name, outputs = stated["target"], stated["outputs"]
        if not outputs and name.startswith("torch.ops.aten._assert_"):
            # What PyTorch checks of a tensor that it converts.
            return
        if name in _OPERATORS:
            target = _OPERATORS[name]
        elif name.startswith("torch.ops.aten."):
            packet, _, overload = name.removeprefix("torch.ops.aten.").partition(".")
            target = getattr(getattr(parts.aten, packet), overload)
        else:
            raise NotImplementedError(
                f"torch.export.load: the operator {name} is none of PyTorch's own (aten)"
            )
        args = [self._value(x["arg"]) for x in stated["inputs"] if x.get("kind") != 2]
        kwargs = {x["name"]: self._value(x["arg"]) for x in stated["inputs"] if x.get("kind") == 2}
        node = self.graph.call_function(target, tuple(args), kwargs)
        names = [self._name(x) for x in outputs]
        if len(outputs) == 1 and names[0] is not None:
            self._known(node, names[0])
            return
        if stated.get("name"):
            node.name = stated["name"]
        parts_of = outputs[0].get("as_tensors")
        listed = names if parts_of is None else [x["name"] for x in parts_of]
        shown: list[object] = []
        for i, part in enumerate(listed if outputs != [{"as_none": True}] else ()):
            if part is not None:
                self._known(self.graph.call_function(operator.getitem, (node, i)), part)
                shown.append(self.nodes[part].meta.get("val"))
        node.meta["val"] = tuple(shown)

    @staticmethod
    def _name(output: Json) -> str | None:
        """Return the name of a result that is one tensor, or one size."""
        kind, found = next(iter(output.items()))
        if kind == "as_optional_tensor":
            return _Reader._name(found)
        if kind == "as_tensor":
            return cast("str", found["name"])
        return cast("str", found.get("as_name")) if kind == "as_sym_int" else None

    def _value(self, stated: Json) -> Any:
        """Return an argument."""
        kind, x = next(iter(stated.items()))
        tables: dict[str, Mapping[int, object]] = {
            "as_scalar_type": _TYPES, "as_layout": _LAYOUTS, "as_memory_format": _MEMORY,
        }  # fmt: skip
        if kind == "as_none":
            return None
        if kind in ("as_tensor", "as_optional_tensor", "as_sym_int"):
            return self._reference(x)
        if kind in ("as_tensors", "as_optional_tensors", "as_sym_ints"):
            return [self._reference(one) for one in x]
        if kind in tables:
            return tables[kind][x]
        if kind == "as_device":
            return device(x["type"])
        if kind == "as_complex":
            return complex(x["real"], x["imag"])
        if kind == "as_float":
            return float(x)
        if kind == "as_floats":
            return [float(one) for one in x]
        if kind in (
            "as_int",
            "as_bool",
            "as_string",
            "as_ints",
            "as_bools",
            "as_strings",
            "as_int_lists",
        ):
            return x
        raise NotImplementedError(f"torch.export.load: an argument that is {kind}: {x}")

    def _reference(self, x: Json) -> object:
        """Return a node by its name, or the number that stands in its place."""
        if "as_tensor" in x:
            return self.nodes[x["as_tensor"]["name"]]
        if "as_none" in x:
            return None
        return x["as_int"] if "as_int" in x else self.nodes[x.get("name") or x["as_name"]]
