"""What of a cluster is shown to people: secrets that stand where they should not are masked.

Secrets belong into files of their own. But engines take tokens from variables and arguments, and clients' URLs may hold
passwords, so these are masked by name (``HF_TOKEN``, ``--api-key``), by look (``hf_…``, ``sk-…``, ``user:password@``),
and, in ``environment``, by source: a variable is shown only where its name says that it is a setting of a library.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["MASK", "masked"]

MASK = "***"
_SECRET_NAME = re.compile(
    r"token(?!iz|s|_budget)|secret|passw|pwd|credential|api[-_]?key|private|(?:^|[-_])(?:auth|key|pat)(?:$|[-_])",
    re.IGNORECASE,
)
_SETTING_NAME = re.compile(
    r"(NCCL|RCCL|GLOO|UCX|FI|CUDA|NVIDIA|HIP|HSA|ROCR|ROCM|ZE|OMP|MKL|KMP|PYTORCH|TORCH|TORCHINDUCTOR|VLLM|SGLANG|SGL"
    r"|TRTLLM|TLLM|TRITON|LLAMA|LLAMA_ARG|GGML|HF_HUB|TRANSFORMERS|TOKENIZERS|RAY|LMCACHE|MOONCAKE|NIXL|XDG)_\w+"
    r"|HF_HOME|HOME|PATH|LD_LIBRARY_PATH|PYTHONPATH|TMPDIR|LANG|LC_ALL|TZ|HOSTNAME"
)
_SECRET_LOOK = re.compile(
    r"\b(hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|glpat-[\w-]{8,}|xox[abp]-[\w-]{8,}"
    r"|AKIA[A-Z0-9]{12,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
_IN_URL = re.compile(r"(://)[^/@\s]+(?=@)|([?&](?:token|api_key|key|auth|sig)=)[^&\s]+")


def masked(shown: Any, name: str = "") -> Any:
    """The same values with secrets masked; ``name`` is the key that they stand under."""
    if isinstance(shown, Mapping):
        if name == "environment":
            return {key: masked(value) if _is_setting(str(key)) else MASK for key, value in shown.items()}
        return {key: _masked_entry(str(key), value) for key, value in shown.items()}
    if isinstance(shown, str):
        return _SECRET_LOOK.sub(MASK, _IN_URL.sub(lambda found: f"{found[1] or found[2]}{MASK}", shown))
    if isinstance(shown, Sequence):
        return _masked_words(shown)
    return shown


def _is_setting(variable: str) -> bool:
    return _SETTING_NAME.fullmatch(variable) is not None and not _SECRET_NAME.search(variable)


def _masked_entry(key: str, value: Any) -> Any:
    """Numbers and names of files are no secrets, whatever their key."""
    if isinstance(value, str) and value and _SECRET_NAME.search(key) and not key.endswith(("_file", "_path")):
        return MASK
    return masked(value, key)


def _masked_words(words: Sequence[Any]) -> list[Any]:
    """A list, which may be arguments: what follows a flag with a secret's name is masked."""
    shown: list[Any] = []
    secret_next = False
    for word in words:
        if not isinstance(word, str):
            shown.append(masked(word))
        elif secret_next and not word.startswith("-"):
            shown.append(MASK)
        else:
            flag, equals, value = word.partition("=")
            is_secret = flag.startswith("-") and _SECRET_NAME.search(flag) is not None and not flag.endswith("-file")
            shown.append(f"{flag}={MASK}" if is_secret and equals and value else masked(word))
            secret_next = is_secret and not equals
            continue
        secret_next = False
    return shown
