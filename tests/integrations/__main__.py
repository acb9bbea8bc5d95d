"""Every type of model of transformers that builds tiny, on regard and on its eager code: a table.

``PYTHONPATH=src:tests python -m integrations [TYPE ...]``
"""

from __future__ import annotations

import sys
import warnings

import torch
import transformers

from integrations.tiny_models import CASES, HEADS, TinyModel, compare, tiny_config

MAX_PARAMETERS = 5_000_000
"""What has more is not tiny: its sizes have other names."""


def num_parameters(case: TinyModel) -> int:
    """How many parameters the model of a case has, without making them."""
    name = HEADS[case.kind][case.model_type]
    config = tiny_config(transformers.CONFIG_MAPPING[case.model_type], **case.config)
    with torch.device("meta"):
        model = getattr(transformers, name if isinstance(name, str) else name[0])(config)
    return sum(parameter.numel() for parameter in model.parameters())


def describe(case: TinyModel) -> str:
    """The row of one type."""
    try:
        if num_parameters(case) > MAX_PARAMETERS:
            return "not tiny with these sizes"
        case.build()
    except Exception as error:  # any: a configuration that does not fit its model
        return f"does not build tiny: {type(error).__name__}"
    try:
        comparison = compare(case)
    except Exception as error:  # any: what the model or regard refuses
        return f"{type(error).__name__}: {str(error)[:110]}".replace("\n", " ")
    served = f"{comparison.num_calls} calls" if comparison.num_calls else "ignores the interface: its own eager code"
    return f"{comparison.largest_difference:.1e} | {served}"


def main(only: list[str]) -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    tested = {(case.model_type, case.kind): case for case in CASES}
    for kind, names in HEADS.items():
        for model_type in names:
            case = tested.get((model_type, kind), TinyModel(model_type, kind))
            if not only or model_type in only:
                print(f"| {model_type} | {kind} | {case.mask} | {describe(case)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
