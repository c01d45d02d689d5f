"""`detect_anomaly`: backward stops at the first NaN and says which forward call it came from. Floor 4."""

from __future__ import annotations

import warnings

from webtorch.ir.lines import user_depth
from webtorch.tensors.tape import anomaly

__all__ = ["detect_anomaly", "set_detect_anomaly"]


class set_detect_anomaly:
    """Turn anomaly detection on or off, at once, or for a `with` block.

    While it is on, gradient functions remember the lines that called them forward; a backward pass
    that fails, or (with `check_nan`) gives NaN, warns with these lines and raises RuntimeError.
    Every function's gradient is read, so backward is slow.
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = anomaly.enabled, anomaly.check_nan
        anomaly.turn(bool(mode), bool(check_nan))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        anomaly.turn(*self._before)


class detect_anomaly:
    """Detect anomalies inside a `with` block, see `set_detect_anomaly`. Warns that this is slow."""

    def __init__(self, check_nan: bool = True) -> None:
        self.check_nan = check_nan
        self._before: list[tuple[bool, bool]] = []
        warnings.warn(
            "Anomaly Detection has been enabled. This mode will increase the runtime and should "
            "only be enabled for debugging.",
            stacklevel=user_depth(),
        )

    def __enter__(self) -> None:
        self._before.append((anomaly.enabled, anomaly.check_nan))
        anomaly.turn(True, self.check_nan)

    def __exit__(self, *error: object) -> None:
        anomaly.turn(*self._before.pop())


def is_anomaly_enabled() -> bool:
    """Return whether anomaly detection is on."""
    return anomaly.enabled


def is_anomaly_check_nan_enabled() -> bool:
    """Return whether it looks for NaN."""
    return anomaly.check_nan


def set_anomaly_enabled(enabled: bool, check_nan: bool = True) -> None:
    """Turn anomaly detection on or off, see `set_detect_anomaly`."""
    anomaly.turn(bool(enabled), bool(check_nan))
