"""Kernels for matrix units on adapters without: their built-in functions become plain code, lane by
lane what the proposal says. Everything else of a kernel runs as it is. Source:
https://github.com/gpuweb/gpuweb/blob/main/proposals/subgroup-matrix.md
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from webtorch.lower.wgsl_shader import WgslPass


def without_units(p: WgslPass, own: Sequence[tuple[str, str]], functions: str) -> WgslPass:
    """Return a pass that needs no matrix units.

    `own` are (pattern, replacement) for what is the kernel's own: how it stores and reloads results,
    and loads other than of (where, line, whether rows) as a vector. `functions` has `accumulate`, and
    what the replacements call.
    """
    text = re.sub(r"^(enable (subgroups|chromium)|diagnostic).*\n", "", p.source, flags=re.M)
    if "subgroupMatrix" not in text:
        return p
    text = text.replace("subgroup_matrix_result<f32, 16, 16>", "array<f32, 8>")
    for pattern, replacement in own:
        text = re.sub(pattern, replacement, text, flags=re.M)
    text = re.sub(
        r"subgroupMatrixLoad<\w+<f16, 16, 16>, (row|col)_major>\(&\w+, (.+), (\d+u)\);",
        lambda m: f"vec3<u32>({m[2]}, {m[3]}, {'1u' if m[1] == 'row' else '0u'});",
        text,
    )
    text = re.sub(
        r"subgroupMatrixMultiplyAccumulate\((\w+), (\w+), (\w+)\)",
        r"accumulate(\1, \2, \3, lid % 32u)",
        text,
    )
    # Naga takes bits for one number.
    text = text.replace("bitcast<vec2<f16>>(word)", "vec2<f16>(unpack2x16float(word))")
    text = text.replace("bitcast<u32>(pair)", "pack2x16float(vec2<f32>(pair))")
    assert "subgroup" not in text
    return replace(p, source=text.replace("@compute", functions + "@compute"))
