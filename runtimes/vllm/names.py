"""Which tool parsers, reasoning parsers, quantisations and cache types does the engine know?

vLLM registers parsers by name in a mapping, and lists the others as `Literal`s. Both are read from
the text of its files, since importing it takes seconds. Where it is not installed, the lists below
count: those of the locked version, to which a test holds them. Source: vLLM 0.32.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# (file in vLLM, variable)
TOOL_PARSERS = ("tool_parsers/__init__.py", "_TOOL_PARSERS_TO_REGISTER")
REASONING_PARSERS = ("reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER")
QUANTISATIONS = ("model_executor/layers/quantization/__init__.py", "QuantizationMethods")
CACHE_TYPES = ("config/cache.py", "CacheDType")
RECORDED = {
    TOOL_PARSERS: """
        dots deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 deepseek_v41 cohere_command3
        cohere_command4 ernie45 glm45 glm47 ling3 granite-20b-fc granite granite4 hermes hf
        poolside_v1 hunyuan_a13b hy_v3 hy_v4 internlm jamba lfm2 kimi_k2 kimi_k3 k2_horizon
        llama3_json llama4_json llama4_pythonic longcat mimo minimax_m2 minimax_m3 minicpm5
        mistral olmo3 plamo3 muse_glimmer openai phi4_mini_json pythonic qwen3_coder
        qwen3_json qwen3_xml seed_oss step3 step3p5 inkling xlam gigachat3 functiongemma
        gemma4 apertus
    """,
    REASONING_PARSERS: """
        deepseek_r1 deepseek_v3 deepseek_v4 deepseek_v41 poolside_v1 cohere_command3
        cohere_command4 ernie45 gemma4 glm45 glm47 ling3 openai_gptoss granite
        granite_thinking_parser hf holo2 hunyuan_a13b hy_v3 hy_v4 kimi_k2 kimi_k3 k2_horizon
        mimo minicpmv minimax_m2 minimax_m2_append_think minimax_m3 mistral nemotron_v3
        olmo3 plamo3 muse_glimmer qwen3 seed_oss step3 step3p5 inkling
    """,
    QUANTISATIONS: """
        awq auto_awq fp8 fbgemm_fp8 fp_quant modelopt modelopt_fp4 modelopt_mxfp8
        modelopt_mixed auto_gptq gptq gptq_marlin awq_marlin humming compressed-tensors
        experts_int8 quark moe_wna16 torchao inc mxfp4 gpt_oss_mxfp4 deepseek_v4_fp8 online
        fp8_per_tensor fp8_per_block fp8_per_channel int8_per_channel_weight_only
        nvfp4_per_token mxfp8
    """,
    CACHE_TYPES: """
        auto float16 bfloat16 fp8 fp8_e4m3 fp8_e5m2 fp8_inc fp8_ds_mla nvfp4_ds_mla
        turboquant_k8v4 turboquant_4bit_nc turboquant_k3v4_nc turboquant_3bit_nc
        ultraquant_4bit int4_per_token_head int8_per_token_head fp8_per_token_head nvfp4
        nvfp4_4over6
    """,
}


@cache
def known(where: tuple[str, str]) -> tuple[str, ...]:
    """The names in one of vLLM's lists."""
    return tuple(_read(*where)) or tuple(RECORDED[where].split())


def check(option: str, name: str | None, where: tuple[str, str]) -> None:
    """Raises `ValueError` in the words of an option's mistake."""
    names = known(where)
    if name is None or name in names:
        return
    close = difflib.get_close_matches(name, names, n=2)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "vLLM has no such name,"
    said = "" if close else f" known: {', '.join(names)}"
    raise ValueError(f"option '{option}' is {name!r}, {hint}{said}")


def _read(file: str, variable: str) -> Iterator[str]:
    """The texts of one assignment; nothing where vLLM or the assignment is not there."""
    found = importlib.util.find_spec("vllm")
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = Path(folder, file)
        if not path.is_file():
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and _names(node.targets[0], variable):
                value = node.value
                listed = value.keys if isinstance(value, ast.Dict) else [value]
                for part in listed:
                    yield from _texts(part)


def _names(target: ast.expr, variable: str) -> bool:
    return isinstance(target, ast.Name) and target.id == variable


def _texts(node: ast.expr | None) -> Iterator[str]:
    for part in ast.walk(node) if node is not None else ():
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value
