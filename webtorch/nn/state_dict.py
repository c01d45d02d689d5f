"""How a module's state dict is made and loaded: one entry, its own, a tree's. May import the tensor floor."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from webtorch.functions import public as webtorch
from webtorch.ir.lines import user_depth
from webtorch.nn.parameter import Parameter
from webtorch.tensors.handle import Hook
from webtorch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from webtorch.nn.module import Module

_EXTRA_STATE_KEY_SUFFIX = "_extra_state"


class _Keys(NamedTuple):
    """The fields of what `load_state_dict` returns."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class _IncompatibleKeys(_Keys):
    """What `load_state_dict` returns: the keys that did not meet."""

    __slots__ = ()

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return super().__repr__()

    __str__ = __repr__


class _LoadHook:
    """A load_state_dict pre-hook that takes the module or not; a class so that it pickles."""

    def __init__(self, hook: Hook, with_module: bool) -> None:
        self.hook = hook
        self.with_module = with_module

    def __call__(self, module: Module, *args: Any) -> None:
        if self.with_module:
            self.hook(module, *args)
        else:
            self.hook(*args)


def save_tree(
    owner: Module,
    args: Sequence[Any],
    destination: dict[str, Any] | None,
    prefix: str,
    keep_vars: bool,
) -> dict[str, Any]:
    """Collect the entries of a module and of all below it, as `Module.state_dict` says."""
    if args:
        warnings.warn(
            "Positional args are being deprecated, use kwargs instead. Refer to "
            "https://pytorch.org/docs/main/generated/torch.nn.Module.html"
            "#torch.nn.Module.state_dict for details.",
            FutureWarning,
            stacklevel=user_depth(),
        )
        destination = args[0] if destination is None else destination
        prefix = args[1] if len(args) > 1 and prefix == "" else prefix
        keep_vars = args[2] if len(args) > 2 and keep_vars is False else keep_vars
    if destination is None:
        destination = OrderedDict()
        destination._metadata = OrderedDict()  # type: ignore[attr-defined]
    local_metadata: dict[str, object] = {"version": owner._version}
    if hasattr(destination, "_metadata"):
        destination._metadata[prefix[:-1]] = local_metadata
    for hook in owner._state_dict_pre_hooks.values():
        hook(owner, prefix, keep_vars)
    owner._save_to_state_dict(destination, prefix, keep_vars)
    for name, module in owner._modules.items():
        if module is not None:
            module.state_dict(
                destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars
            )
    for hook in owner._state_dict_hooks.values():
        changed = hook(owner, destination, prefix, local_metadata)
        if changed is None:
            continue
        if getattr(hook, "_from_public_api", False):
            raise RuntimeError("state_dict post-hook must return None")
        destination = changed
    return destination


def load_own(
    owner: Module,
    state_dict: dict[str, Any],
    prefix: str,
    local_metadata: dict[str, Any],
    strict: bool,
    missing_keys: list[str],
    unexpected_keys: list[str],
    error_msgs: list[str],
    has_extra: bool,
) -> None:
    """Take a module's own entries out of `state_dict`, and note what does not fit. `has_extra`: it has other state."""
    for hook in owner._load_state_dict_pre_hooks.values():
        hook(
            owner, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys,
            error_msgs,
        )  # fmt: skip
    own: dict[str, Tensor] = {k: v for k, v in owner._parameters.items() if v is not None}
    own.update(
        (k, v)
        for k, v in owner._buffers.items()
        if v is not None and k not in owner._non_persistent_buffers_set
    )
    assign = local_metadata.get("assign_to_params_buffers", False)
    for name, current in own.items():
        key = prefix + name
        if key in state_dict:
            owner._load_one(name, key, current, state_dict[key], assign, error_msgs)
        elif strict:
            missing_keys.append(key)
    extra_key = prefix + _EXTRA_STATE_KEY_SUFFIX
    if has_extra:
        if extra_key in state_dict:
            owner.set_extra_state(state_dict[extra_key])
        elif strict:
            missing_keys.append(extra_key)
    elif strict and extra_key in state_dict:
        unexpected_keys.append(extra_key)
    if not strict:
        return
    for key in state_dict:
        if not key.startswith(prefix) or key == extra_key:
            continue
        first, _, rest = key[len(prefix) :].partition(".")
        if first not in (owner._modules if rest or key.endswith(".") else own):
            unexpected_keys.append(key)


def load_one(
    owner: Module,
    name: str,
    key: str,
    current: Tensor,
    value: object,
    assign: bool,
    error_msgs: list[str],
) -> None:
    """Copy or assign one entry, or append to `error_msgs` why it cannot be."""
    if not isinstance(value, Tensor):
        error_msgs.append(
            f'While copying the parameter named "{key}", expected torch.Tensor or '
            f"Tensor-like object from checkpoint but received {type(value)}"
        )
        return
    if current.dim() == 0 and tuple(value.shape) == (1,):
        value = value[0]  # checkpoints of PyTorch 0.3 hold scalars as one-element tensors
    if tuple(value.shape) != tuple(current.shape):
        error_msgs.append(
            f"size mismatch for {key}: copying a param with shape {value.shape} from "
            f"checkpoint, the shape in current model is {current.shape}."
        )
        return
    if current.is_meta and not value.is_meta and not assign:
        warnings.warn(
            f"for {key}: copying from a non-meta parameter in the checkpoint to a meta parameter "
            "in the current model, which is a no-op. (Did you mean to pass `assign=True` to "
            "assign items in the state dictionary to their corresponding key in the module "
            "instead of copying them in place?)",
            stacklevel=user_depth(),
        )
    try:
        with webtorch.no_grad():
            if not assign:
                current.copy_(value)
                return
            if isinstance(current, Parameter):
                if isinstance(value, Parameter):
                    value.requires_grad_(current.requires_grad)
                else:
                    value = Parameter(value, requires_grad=current.requires_grad)
            setattr(owner, name, value)
    except Exception as error:
        error_msgs.append(
            f'While copying the parameter named "{key}", whose dimensions in the model are '
            f"{current.size()} and whose dimensions in the checkpoint are {value.size()}, "
            f"an exception occurred : {error.args}."
        )


def load_tree(
    owner: Module, state_dict: Mapping[str, object], strict: bool, assign: bool
) -> _IncompatibleKeys:
    """Load the entries of a module and of all below it, as `Module.load_state_dict` says."""
    missing: list[str] = []
    unexpected: list[str] = []
    errors: list[str] = []
    metadata = getattr(state_dict, "_metadata", None)
    entries: OrderedDict[str, Any] = OrderedDict(state_dict)
    if metadata is not None:
        entries._metadata = metadata  # type: ignore[attr-defined]

    def load(module: Module, local: dict[str, object], prefix: str) -> None:
        """Load the entries of a module, then those of its children."""
        local_metadata = {} if metadata is None else metadata.get(prefix[:-1], {})
        if assign:
            local_metadata = {**local_metadata, "assign_to_params_buffers": True}
        module._load_from_state_dict(
            local, prefix, local_metadata, True, missing, unexpected, errors
        )
        for name, child in module._modules.items():
            if child is not None:
                below = f"{prefix}{name}."
                load(child, {k: v for k, v in local.items() if k.startswith(below)}, below)
        keys = _IncompatibleKeys(missing, unexpected)
        for hook in module._load_state_dict_post_hooks.values():
            if hook(module, keys) is not None:
                raise AssertionError(
                    "Hooks registered with ``register_load_state_dict_post_hook`` are not "
                    "expected to return new values, if incompatible_keys need to be modified, "
                    "it should be done inplace."
                )

    load(owner, entries, "")
    if strict:
        if unexpected:
            names = ", ".join(f'"{k}"' for k in unexpected)
            errors.insert(0, f"Unexpected key(s) in state_dict: {names}. ")
        if missing:
            names = ", ".join(f'"{k}"' for k in missing)
            errors.insert(0, f"Missing key(s) in state_dict: {names}. ")
    if errors:
        listed = "\n\t".join(errors)
        raise RuntimeError(
            f"Error(s) in loading state_dict for {type(owner).__name__}:\n\t{listed}"
        )
    return _IncompatibleKeys(missing, unexpected)
