"""Nothing that is kept from one tenant's inputs is found by another tenant.

Whoever finds it is answered sooner, and learns that the other has sent the same. Every cache in the
packages that requests pass through stands in `CACHES`, with what keeps tenants apart in it; a new
one fails here until somebody has said it. Source: vLLM CVE-2025-46570 and CVE-2025-25183.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from deployments.gateway.services import INLINE_CHARS, encode_texts
from deployments.gateway.tenancy.fair_thread_pool import FairThreadPool
from deployments.preprocess.tokenizer import TextTokenizer

ROOT = Path(__file__).parents[2]
PACKAGES = ("deployments/gateway", "deployments/control/scaling", "deployments/preprocess",
            "deployments/process", "deployments/contract", "deployments/replica", "routers",
            "runtimes")  # fmt: skip
_CACHE = re.compile(r"(?m)^\s*@(?:functools\.)?(?:lru_)?cache\b|OrderedDict\(\)|=OrderedDict\b|"
                    r"^class \w*Cache\b|cache_salt = ")  # fmt: skip

TENANT = "its key names the tenant"
NO_INPUT = "holds nothing of a request"
QUEUE = "is no cache: it holds what waits, in order"
CACHES = {
    "deployments/preprocess/tokenizer.py": TENANT,
    "deployments/control/scaling/target_reader.py": NO_INPUT,
    "deployments/process/code_version.py": NO_INPUT,
    "deployments/gateway/http/exchange.py": "parsed accept-encoding headers, some microseconds",
    "deployments/gateway/pages.py": NO_INPUT,
    "deployments/gateway/grpc/calls.py": NO_INPUT,
    "deployments/gateway/http/protocols/arrow_answer.py": "heads of answers, some microseconds",
    "deployments/gateway/http/protocols/classify.py": NO_INPUT,  # the length of models' labels
    "deployments/gateway/http/protocols/metadata.py": NO_INPUT,
    "deployments/gateway/http/protocols/openapi_schemas.py": NO_INPUT,
    "deployments/gateway/http/protocols/json_body.py": "decoders, by bounds that models set",
    "deployments/gateway/http/protocols/tensors.py": "decoders, by datatype and depth",
    "deployments/gateway/http/request_head.py": "parsed paths, some microseconds",
    "deployments/gateway/http/strict_protocol.py": "parsed paths, a microsecond",
    "deployments/gateway/http/direct_protocol.py": "whether paths are refused, microseconds",
    "deployments/gateway/tenancy/fair_thread_pool.py": QUEUE,
    "deployments/gateway/queues/lost_replicas.py": "meant for all: what ends replicas is refused",
    "deployments/gateway/queues/connections.py": NO_INPUT,
    "deployments/gateway/reuse/answer_reuse.py": TENANT,
    "deployments/gateway/telemetry/metric_families.py": "label sets: tenants and models' names",
    "deployments/replica/block_index.py": "hashes come salted with the tenant",
    "routers/estimates/generations.py": "by tenant; sessions' names begin with the tenant's",
    "routers/estimates/prefix_tree.py": "prompts' blocks are salted with the tenant",
    "routers/state/rejection_cache.py": "by flow, which is a tenant's",
    "routers/state/replicas.py": "sessions' names begin with the tenant's",
    "runtimes/generation/scheduler.py": "prompts are found by the tenant's salt alone",
    "runtimes/synthetic/engine.py": "prompts' blocks are salted with the tenant",
    "runtimes/vllm/names.py": NO_INPUT,
    "runtimes/vllm/serving.py": "cache_salt and the names of media begin with the tenant's",
}


def test_every_cache_says_what_keeps_tenants_apart() -> None:
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    found = {str(path.relative_to(ROOT)) for path in files if _CACHE.search(path.read_text())}
    kept = {name for name in found if not name.startswith("routers/simulation/")}
    assert kept - CACHES.keys() == set(), "say here what keeps tenants apart in it"
    assert CACHES.keys() - found == set(), "there is no cache any more"


@pytest.fixture
def tokenizer() -> TextTokenizer:
    """Words of letters, by byte pairs."""
    letters = {chr(code): code - 97 for code in range(97, 123)}
    made = Tokenizer(models.BPE(letters, [], unk_token="a"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return TextTokenizer(made.to_str().encode(), 4096, False, 1 << 24)


@pytest.mark.parametrize("text", ["short", "long " * INLINE_CHARS])
async def test_a_text_is_found_by_the_tenant_that_sent_it(
    tokenizer: TextTokenizer, text: str
) -> None:
    pool = FairThreadPool(1, 10)
    try:
        for tenant, hits in (("acme", 0), ("other", 0), ("acme", 1), ("other", 2)):
            ids = await encode_texts(pool, tenant, tokenizer, [text])
            assert tokenizer.statistics().hits_total == hits
            assert json.dumps(ids[0].tolist()[:3]) == json.dumps([ord(c) - 97 for c in text[:3]])
    finally:
        pool.close(5.0)
