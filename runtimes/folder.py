"""What a Hugging Face folder says of its model: its family, its head, its pooling, its length.

A sentence-transformers folder lists modules (`modules.json`): Transformer, Pooling, then Dense and
Normalize in any number; a masked language model and SpladePooling; or, of a vector for each token,
Transformer, Dense, MultiVectorMask and Normalize, where PyLate's folders leave the last two out and
Stanford's ColBERT lists none. Each has a folder with a `config.json`. What is not supported is
refused by name. Files are read as JSON; no model is loaded and no code of the folder's runs.

Source: sentence-transformers 6.2 (Pooling, Dense, Normalize, SpladePooling, MultiVectorEncoder,
CrossEncoder), PyLate 1.6, transformers 5.
"""

from __future__ import annotations

import contextlib
import json
import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runtimes import towers
from runtimes.errors import LoadError
from runtimes.types import TokenVectors

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
SPLADE = "splade"  # the mode of a sparse vector
TOKENS = "tokens"  # the mode of a vector for each token
CHOICES = "config_sentence_transformers.json"
LENGTHS = "sentence_bert_config.json"  # where texts are cut
STANFORD = "artifact.metadata"
_SPECIAL = ("tokenizer_config.json", "special_tokens_map.json")  # names of special tokens
_FLAGS = {  # of configurations before `pooling_mode`
    "pooling_mode_cls_token": "cls",
    **{f"pooling_mode_{mode}": mode for mode in ("lasttoken", "mean_sqrt_len_tokens")},
    **{f"pooling_mode_{mode}_tokens": mode for mode in ("max", "mean", "weightedmean")},
}
# Families of encoders that were compared with transformers (tests/runtimes/test_families.py).
FAMILIES = frozenset(
    {
        *("albert", "bert", "camembert", "data2vec-text", "deberta", "deberta-v2", "distilbert"),
        *("electra", "ernie", "mpnet", "modernbert", "nomic_bert", "roberta", "xlm-roberta"),
        *("xlm-roberta-xl", "qwen2", "qwen3", "gemma3_text", "llama", "mistral"),
    }
)
# Their first position is that of the first token after the padding's: two positions are no token's.
_OFFSET = frozenset(
    {"camembert", "data2vec-text", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl"}
)
_ACTIVATIONS = {
    "Identity": None,
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "Sigmoid": "sigmoid",
}
JUDGES = "Qwen3ForCausalLM"  # whose next word says whether a document answers a query
JUDGED = ("yes", "no")
_SCORES = "ForSequenceClassification"
_HEADS = {"classify": (_SCORES,), "rerank": (_SCORES, JUDGES)}  # how architectures must end
NO_POOLING = (
    "declares no pooling (modules.json): set the option pooling (mean or cls), and normalize where "
    "the model was trained so"
)


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer over an embedding; its weights lie in `folder`/model.safetensors. `residual`:
    what comes in, or of another width a layer of it, is added to what goes out."""

    folder: Path
    inputs: int
    outputs: int
    bias: bool
    activation: str | None  # tanh, relu, gelu, sigmoid; None: none
    residual: bool = False


@dataclass(frozen=True, slots=True)
class Splade:
    """A weight for each entry of the vocabulary, of a masked language model's logits: log(1 + x) of
    the positive ones, once or `twice`, and over a text's tokens their largest or their sum."""

    sums: bool = False
    twice: bool = False


@dataclass(frozen=True, slots=True)
class Pooling:
    """How one vector is made of a text's tokens.

    modes: of `MODES`, their vectors side by side; () where the model has pooled already. dense: the
    layers after it. normalize: to Euclidean length 1, last. splade: for a sparse vector instead;
    tokens: for a vector of each token, through the same layers. prompts: tokens of a prompt count.
    """

    modes: tuple[str, ...] = ("mean",)
    normalize: bool = False
    dense: tuple[Dense, ...] = ()
    splade: Splade | None = None
    tokens: TokenVectors | None = None
    prompts: bool = True

    @property
    def plain(self) -> bool:
        """Whether it is the mean, the first token, or nothing to pool; perhaps normalised."""
        special = self.dense or self.splade or self.tokens or not self.prompts
        return self.modes in ((), ("mean",), ("cls",)) and not special


def read(file: Path) -> Any:
    """A JSON file. Raises `LoadError`."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"{file} cannot be read as JSON: {error}") from error


def configuration(folder: Path) -> dict[str, Any]:
    """The folder's `config.json`. Raises `LoadError`."""
    file = folder / "config.json"
    found = read(file)
    if not isinstance(found, dict):
        raise LoadError(f"{file} is no JSON object")
    return found


def check(folder: Path, task: str, image_sizes: Collection[tuple[int, int]] | None = None) -> None:
    """Raises `LoadError` for a family, a head or a module that is not supported. `image_sizes`:
    (height, width) of a model whose settings say `image`."""
    config = configuration(folder)
    family = config.get("model_type")
    if family in towers.FAMILIES:
        towers.check(folder / "config.json", config, task, image_sizes)
        if task == "classify":
            _check_head(folder, config, (towers.LABELLED,), "task classify")
        return
    if family not in FAMILIES:
        known = ", ".join(sorted(FAMILIES | towers.FAMILIES))
        raise LoadError(
            f"{folder / 'config.json'}: model_type {family!r} is not supported; supported are "
            f"{known}. Export the model to ONNX and name that file"
        )
    if image_sizes is not None:
        raise towers.no_images(folder / "config.json", family)
    places = config.get("position_embedding_type", "absolute")
    if places != "absolute":
        raise LoadError(
            f"{folder / 'config.json'}: position_embedding_type is {places!r}; only absolute "
            "position embeddings are supported"
        )
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise LoadError(f"{folder / 'config.json'}: it is a decoder; encoders are supported")
    declared = declared_pooling(folder)
    if task in _HEADS and not (declared and declared.tokens):  # `check_pooling` refuses those
        _check_head(folder, config, _HEADS[task], f"task {task}")


def check_pooling(folder: Path, task: str, pooling: Pooling | None) -> None:
    """Raises `LoadError` for a task or a head that the pooling (`pooling_of`) is not for."""
    if task == "embed" and pooling is None:
        raise LoadError(f"{folder} {NO_POOLING}")
    config = configuration(folder)
    if config.get("model_type") in towers.FAMILIES:
        kinds = [(SPLADE, pooling and pooling.splade), (TOKENS, pooling and pooling.tokens)]
        named = [kind for kind, is_so in kinds if is_so]
        towers.check_pooling(folder, config, named or (pooling.modes if pooling else ()))
        return
    if task == "rerank":
        judged(folder)
    if pooling is not None and pooling.tokens is not None and task != "embed":
        raise LoadError(
            f"{folder} makes a vector for each token; its task must be embed or rerank, not {task}"
        )
    if pooling is None or pooling.splade is None:
        return
    if task != "embed":
        raise LoadError(f"{folder} makes sparse vectors; its task must be embed, not {task}")
    _check_head(folder, config, ("ForMaskedLM",), "pooling splade")


def _check_head(folder: Path, config: dict[str, Any], ends: tuple[str, ...], what: str) -> None:
    heads = _heads(config)
    if not any(name.endswith(ends) for name in heads):
        raise LoadError(
            f"{folder / 'config.json'}: architectures is {', '.join(heads) or 'missing'}; {what} "
            f"needs one that ends with {' or '.join(ends)}"
        )


def _heads(config: dict[str, Any]) -> list[str]:
    said = config.get("architectures")
    return [name for name in said if isinstance(name, str)] if isinstance(said, list) else []


def declared_pooling(folder: Path) -> Pooling | None:
    """What the folder's modules say; None where it has none. Raises `LoadError`."""
    modules = _modules(folder)
    kinds = [kind for kind, _ in modules]
    family = _said(folder / "config.json").get("model_type")
    if family in towers.FAMILIES:
        return _of_tower(folder, str(family), kinds)
    if "SpladePooling" in kinds:
        return Pooling((), splade=_splade(modules, folder))
    if _is_multi_vector(folder, kinds):
        try:
            return _of_tokens(modules, folder)
        except (TypeError, ValueError, AttributeError):  # a value of a wrong kind, anywhere
            raise LoadError(f"{folder}: {_TOKENS_WANT}") from None
    if "LogitScore" in kinds:
        _check_score(modules, folder)
        return None
    foreign = sorted(set(kinds) - {"Transformer", "Pooling", "Dense", "Normalize"})
    if foreign:
        raise LoadError(
            f"{folder / 'modules.json'}: {', '.join(foreign)} is not supported; Pooling, Dense, "
            "Normalize, SpladePooling and MultiVectorMask are"
        )
    if "Pooling" not in kinds:
        return None
    if kinds[:2] != ["Transformer", "Pooling"] or "Normalize" in kinds[2:-1]:
        raise LoadError(
            f"{folder / 'modules.json'}: the modules are {', '.join(kinds)}; the order has to be "
            "Transformer, Pooling, Dense (any number), Normalize"
        )
    config = read(modules[1][1] / "config.json")
    modes = _modes(config, folder)
    prompts = config.get("include_prompt") is not False or not _has_prompts(folder)
    dense = tuple(
        _dense(place, "sentence_embedding") for kind, place in modules[2:] if kind == "Dense"
    )
    return Pooling(modes, "Normalize" in kinds, dense, prompts=prompts)


def _of_tower(folder: Path, family: str, kinds: list[str]) -> Pooling | None:
    if kinds and (
        kinds[0] not in ("Transformer", "CLIPModel") or kinds[1:] not in ([], ["Normalize"])
    ):
        raise LoadError(
            f"{folder / 'modules.json'}: the modules are {', '.join(kinds)}; of a {family} they "
            "have to be Transformer or CLIPModel, then Normalize or nothing"
        )
    return Pooling((), "Normalize" in kinds) if family in towers.POOLED else None


def pooling_of(folder: Path, mode: str | None, normalize: bool | None) -> Pooling | None:
    """What the options `pooling` and `normalize` say, else what the folder declares; None where
    neither does. Raises `LoadError`."""
    found = declared_pooling(folder)
    if mode == SPLADE:
        found = Pooling((), splade=found.splade if found and found.splade else Splade())
    elif mode == TOKENS:
        found = found if found and found.tokens else Pooling((), tokens=TokenVectors())
    elif mode:
        kept = found if found and not found.tokens else Pooling()
        found = replace(kept, modes=(mode,), splade=None)
    if found and found.splade and normalize:
        raise LoadError(f"{folder}: option normalize is true; a sparse vector is not normalised")
    if found and normalize is not None:
        found = replace(found, normalize=normalize)
    return found


def judges(folder: Path) -> bool:
    """Whether it is a language model that, with task `rerank`, judges pairs: Qwen3-Reranker."""
    return JUDGES in _heads(_said(folder / "config.json"))


def judged(folder: Path) -> tuple[int, ...]:
    """The ids of `JUDGED`. Raises `LoadError`."""
    ids = _vocabulary(folder)
    if any(word not in ids for word in JUDGED):
        raise LoadError(f"{folder}: its tokenizer.json lacks {' or '.join(JUDGED)}, as one token")
    return tuple(ids[word] for word in JUDGED)


def _check_score(modules: list[tuple[str, Path]], folder: Path) -> None:
    """Raises `LoadError` unless the modules of a cross-encoder say of a language model what it is
    served as: its score is how much more likely the first of `JUDGED` is than the second."""
    said = _said(modules[-1][1] / "config.json")
    ids = [said.get(f"{kind}_token_id") for kind in ("true", "false")]
    alike = [kind for kind, _ in modules] == ["Transformer", "LogitScore"] and judges(folder)
    if not alike or ids != list(judged(folder)):
        raise LoadError(
            f"{folder / 'modules.json'}: LogitScore is supported of {JUDGES} alone, behind "
            f"Transformer, for the tokens {' and '.join(JUDGED)}; its tokens are {ids}"
        )


def padding(folder: Path) -> int:
    """The id of the token that texts are filled up with, where the network reads it."""
    token = _special(folder, "pad_token")
    ids = _vocabulary(folder) if (folder / "tokenizer.json").is_file() else {}
    if isinstance(token, str) and token in ids:
        return ids[token]
    texts = configuration(folder).get("text_config")
    number = texts.get("pad_token_id") if isinstance(texts, dict) else None
    return number if type(number) is int else 1


def module_files(folder: Path) -> Sequence[Path]:
    """The modules' configurations and weights, for digests; and what says how texts become rows of
    a model with a vector for each token, and images and texts of one that reads both."""
    names = ("config.json", "model.safetensors")
    modules = _modules(folder)
    places = [place / name for _, place in modules for name in names if place != folder]
    with contextlib.suppress(LoadError):  # of files that whoever reads them refuses
        if _said(folder / "config.json").get("model_type") in towers.FAMILIES:
            places += [folder / name for name in (*towers.PREPARED, *_SPECIAL)]
        if _is_multi_vector(folder, [kind for kind, _ in modules]):
            places += [folder / name for name in (CHOICES, LENGTHS, STANFORD, *_SPECIAL)]
    return [file for file in places if file.is_file()]


def longest(folder: Path) -> int | None:
    """Tokens of the longest row that the network takes, special tokens included; None where the
    folder does not say. Raises `LoadError`."""
    config = configuration(folder)
    if config.get("model_type") in towers.FAMILIES:
        return towers.positions(config)
    positions = config.get("max_position_embeddings")
    if type(positions) is not int or positions < 1:
        return None
    if config.get("model_type") in _OFFSET:
        padding = config.get("pad_token_id")
        positions -= (padding if type(padding) is int else 1) + 1
    return max(1, positions)


def _modes(config: Any, folder: Path) -> tuple[str, ...]:
    if not isinstance(config, dict):
        raise LoadError(f"{folder}: the Pooling module's config.json is no JSON object")
    named = config.get("pooling_mode")
    chosen = [named] if isinstance(named, str) else list(named or ())
    if not chosen:
        flags = [key for key in config if key.startswith("pooling_mode_") and config[key] is True]
        chosen = [_FLAGS.get(key, key) for key in flags]
        chosen.sort(key=lambda mode: list(_FLAGS.values()).index(mode) if mode in MODES else -1)
    unknown = [str(mode) for mode in chosen if mode not in MODES]
    if unknown or not chosen:
        raise LoadError(
            f"{folder}: pooling {', '.join(unknown) or 'unnamed'} is not supported; "
            f"{', '.join(MODES)} are"
        )
    return tuple(chosen)


def _splade(modules: list[tuple[str, Path]], folder: Path) -> Splade:
    kinds = [kind for kind, _ in modules]
    if kinds not in (["MLMTransformer", "SpladePooling"], ["Transformer", "SpladePooling"]):
        raise LoadError(
            f"{folder / 'modules.json'}: the modules are {', '.join(kinds)}; of a sparse model "
            "they have to be MLMTransformer and SpladePooling"
        )
    file = modules[1][1] / "config.json"
    config = read(file)
    if not isinstance(config, dict):
        raise LoadError(f"{file} is no JSON object")
    strategy = config.get("pooling_strategy", "max")
    function = config.get("activation_function", "relu")
    if strategy not in ("max", "sum") or function not in ("relu", "log1p_relu"):
        raise LoadError(
            f"{file}: pooling_strategy {strategy!r} with activation_function {function!r} is not "
            "supported; max and sum, relu and log1p_relu are"
        )
    return Splade(sums=strategy == "sum", twice=function == "log1p_relu")


def _has_prompts(folder: Path) -> bool:
    prompts = _said(folder / CHOICES).get("prompts")
    return isinstance(prompts, dict) and any(prompts.values())


def _said(file: Path) -> dict[str, Any]:
    """What a file says; {} where there is none. Raises `LoadError`."""
    found = read(file) if file.is_file() else {}
    if not isinstance(found, dict):
        raise LoadError(f"{file} is no JSON object")
    return found


def _is_multi_vector(folder: Path, kinds: Sequence[str]) -> bool:
    kind = _said(folder / CHOICES).get("model_type")
    if kind is None and not kinds:
        return "HF_ColBERT" in _heads(_said(folder / "config.json"))
    return "MultiVectorMask" in kinds or kind in ("ColBERT", "MultiVectorEncoder")


def _of_tokens(modules: list[tuple[str, Path]], folder: Path) -> Pooling:
    said = _said(folder / CHOICES)
    if not modules:
        hidden = configuration(folder).get("hidden_size")
        metadata = _said(folder / STANFORD)
        sizes = [metadata.get("dim", 128), hidden]
        if not all(type(size) is int and size > 0 for size in sizes):
            raise LoadError(f"{folder}: hidden_size and dim must be whole numbers from 1")
        layer = Dense(folder, sizes[1], sizes[0], bias=False, activation=None)
        return Pooling((), True, (layer,), tokens=_by_stanford(folder, metadata))
    kinds = [kind for kind, _ in modules]
    ends = kinds[kinds.count("Dense") + 1 :]  # behind the Transformer and those
    by_pylate = said.get("model_type") == "ColBERT"
    known = [] if by_pylate else ["MultiVectorMask", "Normalize"]
    foreign = sorted(set(kinds) - {"Transformer", "Dense", *known})
    if foreign:
        raise LoadError(
            f"{folder / 'modules.json'}: {', '.join(foreign)} is not supported beside a vector for "
            f"each token; {', '.join(['Dense', *known])} {'are' if known else 'is'}"
        )
    orders = [[]] if by_pylate else [known[:1], known, known[::-1]]
    if kinds[:1] != ["Transformer"] or ends not in orders:
        raise LoadError(
            f"{folder / 'modules.json'}: the modules are {', '.join(kinds)}; the order has to be "
            "Transformer, Dense (any number), MultiVectorMask, Normalize"
        )
    dense = tuple(_dense(place, "token_embeddings") for kind, place in modules if kind == "Dense")
    if by_pylate:
        words = said.get("skiplist_words")
    else:
        words = _skipped(modules[kinds.index("MultiVectorMask")][1])
    tokens = _as_said(folder, said, list(string.punctuation) if words is None else words)
    return Pooling((), by_pylate or "Normalize" in kinds, dense, tokens=tokens)


def _skipped(place: Path) -> list[str]:
    file = place / "config.json"
    said = _said(file)
    words = said.get("skiplist_words") or []
    if said.get("keep_only_token_ids") or (words and said.get("skiplist_tasks") != ["document"]):
        raise LoadError(
            f"{file}: keep_only_token_ids, and skiplist_tasks other than document, are not "
            "supported"
        )
    return list(words)


_PYLATES = (
    *("query_length", "document_length", "query_expansion", "do_query_expansion"),
    *("attend_to_expansion_tokens", "query_prefix", "document_prefix", "skiplist_words"),
)


def _as_said(folder: Path, said: dict[str, Any], words: Sequence[Any]) -> TokenVectors:
    """Of sentence-transformers' folders, and of PyLate's, whose keys stand in another file."""
    own = _said(folder / LENGTHS)
    prompts, prefixes = dict(said.get("prompts") or {}), []
    for role in ("query", "document"):
        if f"{role}_prefix" in said:
            prefix = said[f"{role}_prefix"] or ""
            prefixes.append(prefix)
            prompts[role] = prefix + (prompts.get(role) or "").removeprefix(prefix)
    by_pylate = any(key in said for key in _PYLATES)
    query = own.get("query_length")
    if "query_expansion" in own or "query_expansion" in said:
        expansion = own.get("query_expansion", said.get("query_expansion"))
    elif by_pylate and said.get("do_query_expansion") is not False:
        attend = bool(said.get("attend_to_expansion_tokens"))
        length = said.get("query_length") or 32
        expansion = {"strategy": "fixed", "attend": attend, "length": length}
    else:
        expansion, query = None, query or said.get("query_length")
    texts = {name: text for name, text in prompts.items() if text}
    document = own.get("document_length") or said.get("document_length")
    mean = said.get("similarity_fn_name") == "meanmaxsim"
    return _checked(folder, (texts, prefixes), (query, document, expansion), words, mean)


def _by_stanford(folder: Path, said: dict[str, Any]) -> TokenVectors:
    prefixes = [
        f"{said.get('query_token_id') or '[unused0]'} ",
        f"{said.get('doc_token_id') or '[unused1]'} ",
    ]
    attend = bool(said.get("attend_to_mask_tokens"))
    expansion = {"strategy": "fixed", "attend": attend, "length": said.get("query_maxlen") or 32}
    words = string.punctuation if said.get("mask_punctuation", True) else ""
    prompts = dict(zip(("query", "document"), prefixes, strict=True))
    lengths = (None, said.get("doc_maxlen"), expansion)
    return _checked(folder, (prompts, prefixes), lengths, list(words), mean=False)


_TOKENS_WANT = (
    "lengths must be whole numbers, prompts, prefixes and skiplist_words texts, and "
    "query_expansion an object with strategy (fixed or min) and length"
)


def _checked(
    folder: Path, texts: tuple[dict[str, Any], list[Any]], lengths: tuple[Any, Any, Any],
    words: Sequence[Any], mean: bool,
) -> TokenVectors:  # fmt: skip
    """`texts`: prompts and the prefixes among them; `lengths`: of queries, of documents, and the
    queries' expansion. Raises `LoadError` for what is of no such kind."""
    (prompts, prefixes), (query, document, expansion) = texts, lengths
    expansion = {} if expansion is None else expansion
    length = expansion.get("length", 0) if isinstance(expansion, dict) else None
    whole = [each for each in (query, document, length) if each is not None]
    if (
        length is None
        or (expansion and (length == 0 or expansion.get("strategy") not in ("fixed", "min")))
        or any(type(each) is not int or each < 0 for each in whole)
        or not all(isinstance(each, str) for each in (*prompts.values(), *prefixes, *words))
    ):
        raise LoadError(f"{folder}: {_TOKENS_WANT}")
    if expansion.get("strategy") == "fixed":
        query = length
    ids = _vocabulary(folder) if expansion or words or prefixes else {}
    fill = _fill(folder, expansion.get("token"), ids) if expansion else None
    known = [
        next((part for part in (each, *each.split(None, 1)[:1]) if part in ids), "")
        for each in prefixes
    ]
    return TokenVectors(
        prompts=tuple(prompts.items()),
        markers=tuple(each for each in known if each),
        query_length=query,
        document_length=document,
        fill=fill,
        fill_length=length,
        attended=bool(expansion.get("attend")),
        skipped=tuple(sorted({ids[word] for word in words if word in ids})),
        mean=mean,
    )


def _vocabulary(folder: Path) -> Mapping[str, int]:
    """Each token's id, by tokenizer.json. Raises `LoadError`."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise LoadError(f"{folder} holds no tokenizer.json, which its queries and documents need")
    said = read(file)
    try:
        words = said["model"]["vocab"]
        ids = words if isinstance(words, dict) else {word[0]: at for at, word in enumerate(words)}
        added = {each["content"]: each["id"] for each in said.get("added_tokens") or ()}
    except (KeyError, TypeError, IndexError) as error:
        raise LoadError(f"{file} lists no tokens") from error
    return {**ids, **added}


def _special(folder: Path, role: str) -> Any:
    """The token of that role, as the tokeniser's settings name it; None where they do not."""
    files = [_said(folder / name) for name in _SPECIAL]
    said = next((found for file in files if (found := file.get(role))), None)
    return said.get("content") if isinstance(said, dict) else said


def _fill(folder: Path, token: Any, ids: Mapping[str, int]) -> int:
    """The id of the token that queries are filled up with: the one that is named, else the
    tokeniser's mask, else its end. Raises `LoadError`."""
    masks = (_special(folder, "mask_token"), "[MASK]", "<mask>")
    named = (*masks, _special(folder, "eos_token")) if token is None else (token,)
    for each in named:
        if isinstance(each, str) and each in ids:
            return ids[each]
    raise LoadError(
        f"{folder}: queries are filled up with {token or 'the mask'}, which its tokenizer.json "
        "does not have"
    )


def _dense(folder: Path, over: str) -> Dense:
    """`over`: what it has to read."""
    file = folder / "config.json"
    config = read(file)
    try:
        sizes = int(config["in_features"]), int(config["out_features"])
        bias, residual = bool(config.get("bias", True)), bool(config.get("use_residual"))
        reads = config.get("module_input_name") or over
        writes = config.get("module_output_name") or reads
        function = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LoadError(f"{file} names no in_features and out_features") from error
    kind = function.rsplit(".", 1)[-1]
    if kind not in _ACTIVATIONS or not function.startswith("torch.nn."):
        raise LoadError(
            f"{file}: activation_function {function} is not supported; "
            f"{', '.join(_ACTIVATIONS)} of torch.nn are"
        )
    if (reads, writes) != (over, over):
        raise LoadError(f"{file}: it reads {reads} and writes {writes}; it has to be {over} here")
    if not (folder / "model.safetensors").is_file():
        raise LoadError(f"{folder} holds no model.safetensors; a Dense module needs one")
    return Dense(folder, *sizes, bias, _ACTIVATIONS[kind], residual)


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """(kind, folder) of each module; a folder outside the model's is refused."""
    listing = folder / "modules.json"
    if not listing.is_file():
        return []
    try:
        named = [(str(module["type"]), str(module["path"])) for module in read(listing)]
    except (KeyError, TypeError) as error:
        raise LoadError(f"{listing} is no list of modules with type and path") from error
    for _, place in named:
        if Path(place).is_absolute() or ".." in Path(place).parts:
            raise LoadError(f"{listing} names a folder outside the model's: {place}")
    return [(kind.rsplit(".", 1)[-1], folder / place) for kind, place in named]
