"""Recurrent layers: RNN, LSTM, GRU and their cells. May import the tensor floor and nn's base files."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.ir.lines import user_depth
from webtorch.nn import init, recurrence
from webtorch.nn.module import Module
from webtorch.nn.parameter import Parameter
from webtorch.nn.utils.rnn import PackedSequence
from webtorch.tensors import autocast
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.host import sizes_in
from webtorch.tensors.tensor import Tensor

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "GRUCell",
    "LSTMCell",
    "RNNBase",
    "RNNCell",
    "RNNCellBase",
]

_FUNCTIONS = {
    "RNN_TANH": recurrence.rnn_tanh,
    "RNN_RELU": recurrence.rnn_relu,
    "LSTM": recurrence.lstm,
    "GRU": recurrence.gru,
}
_GATES = {"RNN_TANH": 1, "RNN_RELU": 1, "LSTM": 4, "GRU": 3}


def _check_types(**given: Any) -> None:
    """Raise TypeError or ValueError unless sizes are positive ints and flags are bools."""
    for name in ("bias", "batch_first"):
        if not isinstance(given[name], bool):
            raise TypeError(f"{name} should be of type bool, got: {type(given[name]).__name__}")
    for name in ("input_size", "hidden_size"):
        if not isinstance(given[name], int):
            raise TypeError(f"{name} should be of type int, got: {type(given[name]).__name__}")
        if given[name] <= 0:
            raise ValueError(f"{name} must be greater than zero")
    if given["num_layers"] <= 0:
        raise ValueError("num_layers must be greater than zero")
    if given["proj_size"] < 0:
        raise ValueError("proj_size should be a positive integer or zero to disable projections")
    if given["proj_size"] >= given["hidden_size"]:
        raise ValueError("proj_size has to be smaller than hidden_size")


class RNNBase(Module):
    """What RNN, LSTM and GRU share: options, parameters, and the way of a sequence through them.

    Parameters start uniform in +-1/sqrt(hidden_size).
    """

    _all_weights: list[list[str]]

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Make the parameters; `dropout` acts on the outputs of all layers but the last."""
        super().__init__()
        if proj_size and mode != "LSTM":
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        number = isinstance(dropout, numbers.Real) and not isinstance(dropout, bool)
        if not number or not 0 <= float(dropout) <= 1:
            raise ValueError(
                "dropout should be a number in range [0, 1] representing the probability of an "
                "element being zeroed"
            )
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero "
                f"dropout expects num_layers greater than 1, but got dropout={dropout} and "
                f"num_layers={num_layers}",
                stacklevel=user_depth(),
            )
        _check_types(
            bias=bias, batch_first=batch_first, input_size=input_size, hidden_size=hidden_size,
            num_layers=num_layers, proj_size=proj_size,
        )  # fmt: skip
        if mode not in _GATES:
            raise ValueError("Unrecognized RNN mode: " + mode)
        self.mode = mode
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        self._all_weights = []
        for layer in range(num_layers):
            for suffix in ("", "_reverse")[: self._directions]:
                shapes = self._shapes(layer)
                names = [f"{name}_l{layer}{suffix}" for name in shapes]
                for name, shape in zip(names, shapes.values(), strict=True):
                    setattr(
                        self, name, Parameter(webtorch.empty(shape, device=device, dtype=dtype))
                    )
                self._all_weights.append(names)
        self.reset_parameters()

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def _output_size(self) -> int:
        return self.proj_size or self.hidden_size

    def _shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of one direction's parameters, in PyTorch's order."""
        rows = _GATES[self.mode] * self.hidden_size
        features = self._output_size * self._directions if layer else self.input_size
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (rows, features),
            "weight_hh": (rows, self._output_size),
        }
        if self.bias:
            shapes["bias_ih"] = shapes["bias_hh"] = (rows,)
        if self.proj_size:
            shapes["weight_hr"] = (self.proj_size, self.hidden_size)
        return shapes

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of each layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    @property
    def _flat_weights_names(self) -> list[str]:
        return [name for names in self._all_weights for name in names]

    @property
    def _flat_weights(self) -> list[Parameter]:
        return [getattr(self, name) for name in self._flat_weights_names]

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        bound = 1.0 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def flatten_parameters(self) -> None:
        """Do nothing: parameters need no common memory here."""

    def check_input(self, input: Tensor, batch_sizes: Tensor | None) -> None:
        """Raise unless the input fits the weights."""
        weight = self._flat_weights[0]
        # Autocast brings both to one type.
        if input.dtype != weight.dtype and not autocast.signature():
            raise ValueError(
                f"RNN input dtype ({input.dtype}) does not match weight dtype ({weight.dtype}). "
                f"Convert input: input.to({weight.dtype}), or convert model: "
                f"model.to({input.dtype})"
            )
        wanted = 3 if batch_sizes is None else 2
        if input.dim() != wanted:
            raise RuntimeError(f"input must have {wanted} dimensions, got {input.dim()}")
        if input.shape[-1] != self.input_size:
            raise RuntimeError(
                "input.size(-1) must be equal to input_size. Expected "
                f"{self.input_size}, got {input.shape[-1]}"
            )

    def get_expected_hidden_size(
        self, input: Tensor, batch_sizes: Tensor | None
    ) -> tuple[int, int, int]:
        """Return the shape that h_0 must have."""
        if batch_sizes is not None:
            (batch,) = sizes_in(batch_sizes[:1])
        else:
            batch = input.shape[0] if self.batch_first else input.shape[1]
        return self.num_layers * self._directions, batch, self._output_size

    def get_expected_cell_size(
        self, input: Tensor, batch_sizes: Tensor | None
    ) -> tuple[int, int, int]:
        """Return the shape that c_0 must have."""
        layers, batch, _ = self.get_expected_hidden_size(input, batch_sizes)
        return layers, batch, self.hidden_size

    def check_hidden_size(
        self,
        hx: Tensor,
        expected_hidden_size: tuple[int, int, int],
        msg: str = "Expected hidden size {}, got {}",
    ) -> None:
        """Raise RuntimeError unless a state has the expected shape."""
        if tuple(hx.shape) != expected_hidden_size:
            raise RuntimeError(msg.format(expected_hidden_size, list(hx.shape)))

    def check_forward_args(self, input: Tensor, hidden: Any, batch_sizes: Tensor | None) -> None:
        """Raise unless input and state fit."""
        self.check_input(input, batch_sizes)
        self.check_hidden_size(hidden, self.get_expected_hidden_size(input, batch_sizes))

    def permute_hidden(self, hx: Any, permutation: Tensor | None) -> Any:
        """Return the state with its batch in another order."""
        return hx if permutation is None else hx.index_select(1, permutation)

    def _check_rank(self, rank: int) -> None:
        """Raise ValueError unless the input has two or three dimensions."""
        if rank not in (2, 3):
            # PyTorch's RNN says "tensor" here, the others do not.
            kind, word = self.mode.partition("_")[0], "D tensor" if "RNN" in self.mode else "D"
            raise ValueError(f"{kind}: Expected input to be 2D or 3D, got {rank}{word} instead")

    def _check_state_rank(self, hx: Any, batched: bool) -> None:
        """Raise RuntimeError unless the state is batched if the input is."""
        if batched and hx.dim() != 3:
            raise RuntimeError(
                f"For batched 3-D input, hx should also be 3-D but got {hx.dim()}-D tensor"
            )
        if not batched and hx.dim() != 2:
            raise RuntimeError(
                f"For unbatched 2-D input, hx should also be 2-D but got {hx.dim()}-D tensor"
            )

    def _zero_state(self, input: Tensor, batch_sizes: Tensor | None) -> object:
        """Return the state of sequences that begin."""
        shape = self.get_expected_hidden_size(input, batch_sizes)
        return webtorch.zeros(shape, dtype=input.dtype, device=input.device)

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        """Return (output, h_n), and for an LSTM (output, (h_n, c_n)).

        (T, N, features), (N, T, features) if `batch_first`, (T, features) or a PackedSequence to
        the same with directions * H features; states are (layers * directions, N, H).
        """
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx)
        self._check_rank(input.dim())
        batched = input.dim() == 3
        batch_dim = 0 if self.batch_first else 1
        if hx is not None:
            self._check_state_rank(hx, batched)
        if not batched:
            input = input.unsqueeze(batch_dim)
            hx = None if hx is None else _each(hx, lambda h: h.unsqueeze(1))
        hx = self._zero_state(input, None) if hx is None else hx
        self.check_forward_args(input, hx, None)
        out, *last = _FUNCTIONS[self.mode](
            input, hx, self._flat_weights, self.bias, self.num_layers, self.dropout,
            self.training, self.bidirectional, self.batch_first,
        )  # fmt: skip
        hidden: Any = tuple(last) if self.mode == "LSTM" else last[0]
        if not batched:
            return out.squeeze(batch_dim), _each(hidden, lambda h: h.squeeze(1))
        return out, hidden

    def _forward_packed(
        self, sequence: PackedSequence, hx: object
    ) -> tuple[PackedSequence, object]:
        """Run over packed steps; states are in the order of the batch before packing."""
        data, batch_sizes, sorted_indices, unsorted_indices = sequence
        if hx is None:
            hx = self._zero_state(data, batch_sizes)
        else:
            hx = self.permute_hidden(hx, sorted_indices)
        self.check_forward_args(data, hx, batch_sizes)
        out, *last = _FUNCTIONS[self.mode](
            data, batch_sizes, hx, self._flat_weights, self.bias, self.num_layers, self.dropout,
            self.training, self.bidirectional,
        )  # fmt: skip
        hidden: object = tuple(last) if self.mode == "LSTM" else last[0]
        packed = PackedSequence(out, batch_sizes, sorted_indices, unsorted_indices)
        return packed, self.permute_hidden(hidden, unsorted_indices)

    def extra_repr(self) -> str:
        """Return the sizes, and what differs from the defaults."""
        text = f"{self.input_size}, {self.hidden_size}"
        if self.proj_size != 0:
            text += f", proj_size={self.proj_size}"
        if self.num_layers != 1:
            text += f", num_layers={self.num_layers}"
        if self.bias is not True:
            text += f", bias={self.bias}"
        if self.batch_first is not False:
            text += f", batch_first={self.batch_first}"
        if self.dropout != 0:
            text += f", dropout={self.dropout}"
        if self.bidirectional is not False:
            text += f", bidirectional={self.bidirectional}"
        return text


def _each(
    state: Tensor | tuple[Tensor, ...] | list[Tensor], change: Callable[[Tensor], Tensor]
) -> object:
    """Return a state, one tensor or two, changed."""
    return tuple(map(change, state)) if isinstance(state, (tuple, list)) else change(state)


class RNN(RNNBase):
    """Elman's network: h = tanh(W_ih x + b_ih + W_hh h + b_hh). Elman, 1990."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Take the sizes and options; `nonlinearity` is "tanh" or "relu", `proj_size` an LSTM's alone."""
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(
                f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'."
            )
        super().__init__(
            f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, bias, batch_first,
            dropout, bidirectional, proj_size, device, dtype,
        )  # fmt: skip
        self.nonlinearity = nonlinearity


class LSTM(RNNBase):
    """Long short-term memory. Hochreiter and Schmidhuber, 1997; `proj_size`: Sak et al., 2014."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Take the sizes and options."""
        super().__init__(
            "LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            proj_size, device, dtype,
        )  # fmt: skip

    def check_forward_args(self, input: Tensor, hidden: Any, batch_sizes: Tensor | None) -> None:
        """Raise unless input and both states fit."""
        self.check_input(input, batch_sizes)
        self.check_hidden_size(
            hidden[0],
            self.get_expected_hidden_size(input, batch_sizes),
            "Expected hidden[0] size {}, got {}",
        )
        self.check_hidden_size(
            hidden[1],
            self.get_expected_cell_size(input, batch_sizes),
            "Expected hidden[1] size {}, got {}",
        )

    def permute_hidden(self, hx: Any, permutation: Tensor | None) -> Any:
        """Return both states with their batch in another order."""
        if permutation is None:
            return hx
        return tuple(one.index_select(1, permutation) for one in hx)

    def _check_state_rank(self, hx: Any, batched: bool) -> None:
        """Raise RuntimeError unless the states are batched if the input is."""
        wanted = 3 if batched else 2
        if hx[0].dim() != wanted or hx[1].dim() != wanted:
            kind = "batched 3-D" if batched else "unbatched 2-D"
            raise RuntimeError(
                f"For {kind} input, hx and cx should also be {wanted}-D but got "
                f"({hx[0].dim()}-D, {hx[1].dim()}-D) tensors"
            )

    def _zero_state(self, input: Tensor, batch_sizes: Tensor | None) -> object:
        """Return both states of sequences that begin."""
        cell = self.get_expected_cell_size(input, batch_sizes)
        return (
            super()._zero_state(input, batch_sizes),
            webtorch.zeros(cell, dtype=input.dtype, device=input.device),
        )


class GRU(RNNBase):
    """Gated recurrent unit. Cho et al., 2014."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Take the sizes and options; `proj_size` is an LSTM's alone."""
        super().__init__(
            "GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            proj_size, device, dtype,
        )  # fmt: skip


class RNNCellBase(Module):
    """What the cells share. Parameters start uniform in +-1/sqrt(hidden_size)."""

    # How many tensors the state has.
    _states: ClassVar[int] = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        num_chunks: int,
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Make weight_ih, weight_hh and, if `bias`, bias_ih and bias_hh."""
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        rows = num_chunks * hidden_size
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight_ih = Parameter(webtorch.empty((rows, input_size), **made))
        self.weight_hh = Parameter(webtorch.empty((rows, hidden_size), **made))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(webtorch.empty(rows, **made)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        bound = 1.0 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def extra_repr(self) -> str:
        """Return the sizes, and what differs from the defaults."""
        text = f"{self.input_size}, {self.hidden_size}"
        if self.bias is not True:
            text += f", bias={self.bias}"
        if getattr(self, "nonlinearity", "tanh") != "tanh":
            text += f", nonlinearity={self.nonlinearity}"
        return text

    def _check_ranks(self, input: Tensor, hx: Any) -> None:
        """Raise ValueError unless input and state are batched or not."""
        kind = type(self).__name__
        if input.dim() not in (1, 2):
            raise ValueError(f"{kind}: Expected input to be 1D or 2D, got {input.dim()}D instead")
        for position, one in enumerate(() if hx is None else hx):
            if one.dim() not in (1, 2):
                name = "hidden" if self._states == 1 else f"hx[{position}]"
                raise ValueError(
                    f"{kind}: Expected {name} to be 1D or 2D, got {one.dim()}D instead"
                )

    def _stepped(self, function: Any, input: Tensor, hx: Any) -> Any:
        """Return what `function` makes of input and state, both given a batch dimension."""
        if hx is not None and self._states == 1:
            hx = (hx,)
        self._check_ranks(input, hx)
        batched = input.dim() == 2
        x = input if batched else input.unsqueeze(0)
        if hx is None:
            zeros = webtorch.zeros((x.shape[0], self.hidden_size), dtype=x.dtype, device=x.device)
            hx = (zeros,) * self._states
        elif not batched:
            hx = tuple(one.unsqueeze(0) for one in hx)
        out = function(
            x, hx[0] if self._states == 1 else hx, self.weight_ih, self.weight_hh, self.bias_ih,
            self.bias_hh,
        )  # fmt: skip
        return out if batched else _each(out, lambda t: t.squeeze(0))


class RNNCell(RNNCellBase):
    """One step of Elman's network: (N, features), (N, H) to (N, H)."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Make the parameters; `nonlinearity` is "tanh" or "relu"."""
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Return the next state; zeros are the first one."""
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        function = (
            recurrence.rnn_tanh_cell if self.nonlinearity == "tanh" else recurrence.rnn_relu_cell
        )
        return self._stepped(function, input, hx)


class LSTMCell(RNNCellBase):
    """One step of an LSTM: (N, features), ((N, H), (N, H)) to ((N, H), (N, H))."""

    _states = 2

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Make the parameters."""
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the next (h, c); zeros are the first ones."""
        return self._stepped(recurrence.lstm_cell, input, hx)


class GRUCell(RNNCellBase):
    """One step of a GRU: (N, features), (N, H) to (N, H)."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Make the parameters."""
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Return the next state; zeros are the first one."""
        return self._stepped(recurrence.gru_cell, input, hx)
